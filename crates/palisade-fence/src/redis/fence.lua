-- The fence's decision in Redis. A script is one step: no client sees the check without the effect.
-- vectors/fence.json says what it must answer.
--
-- KEYS   1 mark   2 .. keys of the effect, then keys that are only guarded
-- ARGV   1 mode (claim, strict, textbook, unfenced)   2 bound of a jump, or ''
--        3 op (claim, read, write, tokenless)         4 token
--        5 authority, or ''   6 lock, or ''           7 sequence number, or ''   8 digest of a numbered write
--        9 effect (none, command, deleting, script)   10 .. its own: a command and its arguments, or how many
--                                                     keys the script has and its arguments
-- If the user has a script, `local function effect(KEYS, ARGV) .. end` precedes this text.
--
-- Numbers are compared as numbers of Lua, which are exact up to 2^53. They are never formatted: the text that
-- came in is stored and returned.
--
-- The mark is a string of lines: token, written ('' nothing, 'yes' unnumbered, or the last sequence
-- number), digest, authority, lock; after them the packed result of the last numbered script.

local mark, mode, op, token, sequence, kind = KEYS[1], ARGV[1], ARGV[3], ARGV[4], ARGV[7], ARGV[9]
local held = redis.call('GET', mark)

-- The same holder writes again without a number: the mark stays as it is, so there is nothing to decide.
local goes_on = mode == 'claim' and sequence == '' and op ~= 'tokenless'
  and held == token .. '\nyes\n\n' .. ARGV[5] .. '\n' .. ARGV[6] .. '\n'
if goes_on and kind == 'command' then
  local answer = redis.pcall(ARGV[10], KEYS[2], unpack(ARGV, 11))
  if type(answer) == 'table' and answer.err then return { 'failed', answer.err } end
  return { 'admit', token, answer }
end

local LAST, RESULT_BYTES = 9007199254740991, 65536
local authority, lock, digest = ARGV[5], ARGV[6], ARGV[8]

local function number(text)
  if #text > 16 or not string.find(text, '^%d+$') then return nil end
  local value = tonumber(text)
  return value <= LAST and value or nil
end

local highest, written, said, bound_authority, bound_lock, rest = false, '', '', '', '', nil
if held then
  highest, written, said, bound_authority, bound_lock, rest =
    string.match(held, '^(%d+)\n(%w*)\n(%d*)\n([^\n]*)\n([^\n]*)\n()')
  if not highest or (number(highest) or 0) == 0
    or (written ~= '' and written ~= 'yes' and not number(written)) then
    return { 'corrupt', held }
  end
end
local recorded = held and string.sub(held, rest) or ''
local through = number(written)

-- The token is the highest one: only the holder's own earlier writes count. Returns the answer, or nil if the
-- operation is admitted.
local function again()
  if op ~= 'write' then return nil end
  if sequence ~= '' and written == sequence then
    if said ~= digest then return { 'reject', 'sequence_reused', sequence } end
    local answer = recorded ~= '' and cmsgpack.unpack(recorded)
    if type(answer) == 'table' and answer.err then return { 'failed', answer.err } end
    return { 'repeat', highest, answer or false }
  end
  if written ~= '' and mode == 'strict' then return { 'reject', 'already_written' } end
  if sequence ~= '' and through and number(sequence) < through then
    return { 'reject', 'sequence_stale', written }
  end
end

-- Returns the answer if the effect is not carried out, and nil if it is.
local function refusal()
  if op == 'tokenless' then
    if mode == 'unfenced' then return nil end
    if highest then return { 'reject', 'tokenless', highest } end
    return { 'unarmed' }
  end
  if mode == 'unfenced' or mode == 'textbook' and op ~= 'write' then return nil end
  local mine, seen = number(token), highest and number(highest) or 0
  if mode == 'textbook' then
    if mine < seen then return { 'reject', 'stale', highest } end
    return nil
  end
  if bound_authority ~= '' and authority ~= bound_authority then
    return { 'reject', 'wrong_authority', bound_authority }
  end
  if bound_lock ~= '' and lock ~= bound_lock then return { 'reject', 'wrong_lock', bound_lock } end
  if not highest and #KEYS > 1 and redis.call('EXISTS', unpack(KEYS, 2)) > 0 then return { 'lost' } end
  if mine < seen then return { 'reject', 'stale', highest } end
  if mine == seen then return again() end
  if ARGV[2] ~= '' and mine - seen > tonumber(ARGV[2]) then
    return { 'reject', 'jump', highest or '', ARGV[2] }
  end
end

local refused = refusal()
if refused then return refused end

-- The mark from now on.
local numbered = op == 'write' and sequence ~= '' and (mode == 'claim' or mode == 'strict')
local after = held
if mode == 'textbook' then
  if op == 'write' then after = token .. '\nyes\n\n\n\n' end
elseif mode ~= 'unfenced' then
  if token ~= highest then written, said, recorded = '', '', '' end
  if numbered then
    written, said, recorded = sequence, digest, ''
  elseif op == 'write' and written == '' then
    written = 'yes'
  end
  after = table.concat({
    token, written, said,
    bound_authority ~= '' and bound_authority or authority,
    bound_lock ~= '' and bound_lock or lock,
    recorded,
  }, '\n')
end

-- The mark is stored before the effect, so an effect that fails later has raised the fence. SET also removes a
-- time to live.
if after ~= held then redis.call('SET', mark, after) end

-- Restores the mark after an effect that did not happen.
local function undo()
  if after == held then return end
  if held then redis.call('SET', mark, held) else redis.call('DEL', mark) end
end

local answer = false
if kind == 'command' or kind == 'deleting' then
  answer = redis.pcall(ARGV[10], KEYS[2], unpack(ARGV, 11))
  if type(answer) == 'table' and answer.err then
    undo()
    return { 'failed', answer.err }
  end
  if kind == 'deleting' and answer == 0 then
    undo()
    return { 'reject', 'missing' }
  end
elseif kind == 'script' then
  local keys, arguments = {}, {}
  for at = 1, tonumber(ARGV[10]) do keys[at] = KEYS[at + 1] end
  for at = 11, #ARGV do arguments[at - 10] = ARGV[at] end
  local fine, returned = pcall(effect, keys, arguments)
  answer = returned
  if not fine and type(answer) ~= 'table' then answer = { err = tostring(answer) } end
  if numbered then
    local packed = cmsgpack.pack(answer)
    if #packed <= RESULT_BYTES then redis.call('APPEND', mark, packed) end
  end
  if type(answer) == 'table' and answer.err then return { 'failed', answer.err } end
end
return { 'admit', after and string.match(after, '^%d+') or '', answer or false }
