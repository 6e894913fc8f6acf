return function(answers)
  local vote = alc.vote(answers)
  return vote.winner .. " (" .. vote.count .. " of " .. vote.total .. ")"
end
