#!lua name=palisade
-- The fence in Redis as a function library, for every language: Redis 7 and later.
--
--     FCALL palisade_claim 1 palisade:fence:{orders} 34
--     FCALL palisade_get   2 palisade:fence:{orders} {orders}:total 34
--     FCALL palisade_set   2 palisade:fence:{orders} {orders}:total 34 42
--
-- KEYS: the mark of the resource, which is palisade:fence:{RESOURCE}, and the key to read or write, whose hash tag is
-- RESOURCE (the first braces in it are {RESOURCE}), or which is RESOURCE itself. Every other key, and every mark, is refused:
-- what is checked is what is changed. ARGV: the token, the command's own arguments, and then,
-- where the holder has them, authority, lock and the sequence number of a write ('' stands for none).
--
-- An admitted call answers as its command does. A rejection is an error, `PALISADE CODE VALUE: what to do`.
local VERSION = 2

-- fence.lua, which is also the script for EVALSHA.
local function fence(KEYS, ARGV)
--[[fence.lua]]
end

local SAYS = {
  stale = 'a newer holder has claimed this resource: give up, and write nothing more',
  sequence_stale = 'a later write of this grant was already carried out: drop this one',
  sequence_reused = 'this sequence number was used for another write of this grant',
  already_written = 'there was already a write under this token',
  wrong_authority = 'the resource belongs to another authority',
  wrong_lock = 'the resource belongs to another lock',
  jump = 'the token is too far above the highest that this resource has seen',
  missing = 'there is nothing to delete',
  lost = 'there is data without its fence: an operator must look at this resource',
  corrupt = 'the mark was not written by a fence: an operator must look at this resource',
}

local function refused(code, value, token)
  local says = SAYS[code]
  if code == 'stale' then says = 'token ' .. token .. ' is stale: ' .. token .. ' < ' .. value .. '; ' .. says end
  return redis.error_reply('PALISADE ' .. code .. ' ' .. (value or '-') .. ': ' .. says)
end

local function invalid(what)
  return redis.error_reply('PALISADE invalid -: ' .. what)
end

-- Whether a text is a number that the fence stores: without sign and leading zeros, at most 2^53 - 1.
local function is_number(text, least)
  return #text <= 16 and (string.find(text, '^[1-9]%d*$') or text == '0') and tonumber(text) >= least
    and tonumber(text) <= 9007199254740991
end

local function is_name(text)
  return text == '' or #text <= 255 and string.find(text, '^[ -~]*$')
end

-- Returns what is wrong with the keys, or nil. The tag is found as a cluster finds it: between the first { and the next }.
local function misnamed(mark, key)
  local resource = string.match(mark, '^palisade:fence:{([ -z|~]+)}$')
  if not resource or #resource > 255 then
    return 'the first key is the mark of the resource, palisade:fence:{RESOURCE}; RESOURCE is 1 to 255 bytes of printable ASCII'
  end
  if key and string.find(key, '^palisade:fence:') then
    return 'the second key belongs to a fence: keys that begin with palisade:fence: are not data'
  end
  if key and key ~= resource and string.match(key, '^[^{]*{([^}]+)}') ~= resource then
    return 'the second key is not one of the resource: call it {' .. resource .. '}:...'
  end
end

-- A checksum of a numbered write's content, to tell a repeat from another write: the same in every call.
local function digest(parts)
  local text = ''
  for _, part in ipairs(parts) do text = text .. #part .. ':' .. part end
  local hex = redis.sha1hex(text)
  return string.format('%.0f', tonumber(string.sub(hex, 1, 13), 16))
end

-- Makes a function: `op` and effect of fence.lua, a command of Redis, and how many arguments the command has.
local function call(op, kind, command, arguments)
  local keys = kind == 'none' and 1 or 2
  return function(KEYS, ARGV)
    if #KEYS ~= keys then return invalid('this function takes ' .. keys .. ' keys') end
    local wrong = misnamed(KEYS[1], KEYS[2])
    if wrong then return invalid(wrong) end
    local after = 1 + arguments
    if #ARGV < after or #ARGV > after + 3 then
      return invalid('the arguments are the token, ' .. arguments .. ' of the command, authority, lock, sequence number')
    end
    local authority, lock, sequence = ARGV[after + 1] or '', ARGV[after + 2] or '', ARGV[after + 3] or ''
    if not is_number(ARGV[1], 1) then return invalid('a token is in 1 ..= 9007199254740991') end
    if sequence ~= '' and not is_number(sequence, 0) then
      return invalid('a sequence number is in 0 ..= 9007199254740991')
    end
    if not (is_name(authority) and is_name(lock)) then
      return invalid('an authority and a lock are printable ASCII, at most 255 bytes')
    end
    local effect = { command }
    for at = 2, after do effect[at] = ARGV[at] end
    local said = sequence ~= '' and digest({ KEYS[2] or '', unpack(effect) }) or ''
    local asked = { 'claim', '70368744177664', op, ARGV[1], authority, lock, sequence, said, kind, unpack(effect) }
    local answer = fence(KEYS, asked)
    if answer[1] == 'admit' then
      if kind == 'none' then return ARGV[1] end
      return answer[3]
    end
    -- A repeat of a command has no recorded answer: it was carried out.
    if answer[1] == 'repeat' then return answer[3] or redis.status_reply('REPEATED') end
    if answer[1] == 'reject' then return refused(answer[2], answer[3] ~= '' and answer[3] or nil, ARGV[1]) end
    if answer[1] == 'failed' then return redis.error_reply(answer[2]) end
    return refused(answer[1])
  end
end

redis.register_function('palisade_claim', call('claim', 'none', '', 0))
redis.register_function('palisade_get', call('read', 'command', 'GET', 0))
redis.register_function('palisade_hget', call('read', 'command', 'HGET', 1))
redis.register_function('palisade_set', call('write', 'command', 'SET', 1))
redis.register_function('palisade_append', call('write', 'command', 'APPEND', 1))
redis.register_function('palisade_incrby', call('write', 'command', 'INCRBY', 1))
redis.register_function('palisade_hset', call('write', 'command', 'HSET', 2))
redis.register_function('palisade_del', call('write', 'deleting', 'DEL', 0))
redis.register_function { function_name = 'palisade_version', callback = function() return VERSION end, flags = { 'no-writes' } }
