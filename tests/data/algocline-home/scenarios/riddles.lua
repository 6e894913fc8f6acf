return { cases = { { input = "1+1", expected = "2" } } }
