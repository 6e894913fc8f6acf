"""A program that is killed in the middle and goes on: `panel` is the program, `show` kills it and
checks the claims.
"""
