-- Going through `alc` or `alc.state`: then all of it has to be there. A part of the sandbox: it gets the kit.

local kit = ...

local next = next

for _, name in ipairs({ "bridge", "saying", "text", "numbers", "layer1", "cards" }) do
  kit.part(name)
end

local function pairs(t)
  return next, t, nil
end

return { pairs = pairs }
