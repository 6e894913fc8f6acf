-- Lists of cases in a module: a program reads no files, so a list of cases is required like any module.

local Case = require("evalframe.model.case")

local loader = {}

-- The cases that a module returns as a list. The name of a file in the folder of scenarios is a module too.
function loader.load_file(name)
  if type(name) ~= "string" then
    error("load_cases: expected the name of a module, got " .. type(name), 2)
  end
  local specs = require("evalframe.scenario").load(name, "load_cases")
  if type(specs) ~= "table" then
    error(string.format("load_cases: '%s' returned a %s, not a list of cases", name, type(specs)), 2)
  end
  local cases = {}
  for i, spec in ipairs(specs) do
    cases[i] = Case.is_case(spec) and spec or Case.new(spec)
  end
  return cases
end

return loader
