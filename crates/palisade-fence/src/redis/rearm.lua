-- Re-arms a fence for an operator. KEYS 1 mark; ARGV 1 floor, 2 authority or '', 3 token to lower from, or ''.
-- Returns nothing if it is done; otherwise the token at which the fence stands. Marks and numbers as in fence.lua.

local highest = string.match(redis.call('GET', KEYS[1]) or '', '^%d+')
if highest and tonumber(highest) > tonumber(ARGV[1]) and highest ~= ARGV[3] then return highest end
redis.call('SET', KEYS[1], ARGV[1] .. '\n\n\n' .. ARGV[2] .. '\n\n')
return false
