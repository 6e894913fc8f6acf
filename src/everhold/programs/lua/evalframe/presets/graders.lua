-- Graders without a model.

local grader = require("evalframe.model.grader")

local graders = {}

-- A grader that accepts a text if it fits one of the expected texts.
local function one_of(name, fits)
  graders[name] = grader(name)({
    check = function(response, case)
      if not case.expected then
        return nil, "the case does not say what is expected"
      end
      for _, wanted in ipairs(case.expected) do
        if fits(response.text, wanted) then
          return true
        end
      end
      return false
    end,
  })
end

one_of("exact_match", function(text, wanted)
  return text == wanted
end)

one_of("contains", function(text, wanted)
  return string.find(text, wanted, 1, true) ~= nil
end)

one_of("starts_with", function(text, wanted)
  return string.sub(text, 1, #wanted) == wanted
end)

-- A Lua pattern: `context.pattern` of the case, else what is expected.
graders.regex = grader "regex" {
  check = function(response, case)
    local pattern = case.context.pattern or case.expected and case.expected[1]
    if type(pattern) ~= "string" then
      return nil, "the case has no pattern: set context.pattern, or expected"
    end
    return string.find(response.text, pattern) ~= nil
  end,
}

graders.json_valid = grader "json_valid" {
  check = function(response)
    return (pcall(alc.json_decode, response.text))
  end,
}

graders.not_empty = grader "not_empty" {
  check = function(response)
    return response.text ~= ""
  end,
}

-- Bytes of the text; needs a scorer.
graders.length = grader "length" {
  check = function(response)
    return #response.text
  end,
}

-- Milliseconds until the answer; needs a scorer.
graders.latency = grader "latency" {
  check = function(response)
    return response.latency_ms
  end,
}

graders.valid_json_response = grader.all(graders.not_empty, graders.json_valid)
graders.flexible_match = grader.any(graders.exact_match, graders.contains)

return graders
