-- What evalframe uses of its host: JSON and the time. A program has no files.

local function no_files()
  error("programs read no files; require a module instead", 2)
end

return {
  json = { encode = alc.json_encode, decode = alc.json_decode },
  time = alc.time,
  fs = {
    read_file = no_files,
    file_exists = function()
      return false
    end,
  },
}
