-- One operation of the lock service, whole: Redis runs a script as one step.
--
--   ROOT, AUTHORITY, TOKENS, OPERATION   set by the line that the caller puts before this text: what the
--            names of all keys begin with, with one hash tag; the authority id that the caller knows
--            (another data set is another authority); its counter's key; what to do
--   KEYS[1]  ROOTlock:NAME, the lock
--   ARGV     what the operation takes
--
-- The answer is a text of lines: the word for what came out; the holder's name, token, milliseconds
-- left, begin, and time to live; how many wait; the holder's metadata. What is not known is left out
-- at the end, or empty. A grant made just now is answered by its token alone.
--
-- Keys, below the root:
--   authority        the id of this data set
--   tokens:ID        the last fencing token drawn by that data set, for all locks
--   lock:NAME        the holder and how the grant before it ended; expires with its lease.
--                    Begins with `held`, or with `wanted` once somebody waits for it.
--                    Of a free lock: how its last grant ended, kept for ten minutes
--   queue:NAME       sorted set of waiting request ids, by ticket
--   wait:ID          hash of a waiting request; expires when it gives no sign of life
--   abandoned:ID     a request that was given up, which is never granted from then on; for an hour
--
-- While a lock's record says `held`, or how the last grant ended, its queue is empty: so a lock nobody
-- waits for is taken with one INCR and one write and given up with one write. What is below the first
-- `return`s is for everything else, and costs nothing before: no function is made, and few strings, an
-- argument being one as well. An acquire's `wish` is what the holder says of itself: when it began, for
-- people, and its time to live, each after a blank; its name and its metadata, each after a line's end;
-- and one more at the end.
local call = redis.call
local place = KEYS[1]
local LAST_TOKEN, ENDED_MS, ABANDONED_MS, MOST_WAITERS = 9007199254740991, '600000', '3600000', 1024
-- Up to here Lua spells a number as it is, and not with an exponent.
local LAST_SPELLED = 99999999999999
-- What `held` and `wanted` begin with.
local H, W, BLANK = 104, 119, 32

if OPERATION == 'acquire' then
  local request, wish, ttl = ARGV[1], ARGV[2], ARGV[3]
  if call('EXISTS', ROOT .. 'abandoned:' .. request) == 1 then return 'abandoned' end
  local text = call('GET', place) or ''
  local first = string.byte(text)
  if first ~= H and first ~= W and not string.find(text, request, 1, true)
    and (first or call('EXISTS', ROOT .. 'queue:' .. string.sub(place, #ROOT + 6)) == 0) then
    -- Draws the token and grants: one step, so tokens rise in the order of grants (rule A2).
    local token = call('INCR', TOKENS)
    if token > 1 and token <= LAST_SPELLED then
      call('PSETEX', place, ttl, 'held ' .. request .. ' ' .. token .. wish .. text)
      return token
    end
    -- A counter that begins is perhaps that of a data set which is gone, and the last tokens are spelled
    -- otherwise: not drawn, and looked at more closely below.
    call(token == 1 and 'DEL' or 'DECR', TOKENS)
  end
elseif OPERATION == 'release' then
  -- The id of the request says which data set it is, too.
  local text, grant = call('GET', place), ARGV[1]
  if text and string.byte(text) == H and string.find(text, grant, 6, true) == 6
    and string.byte(text, 6 + #grant) == BLANK then
    call('PSETEX', place, ENDED_MS, 'released ' .. grant)
    return 'done'
  end
end

if call('GET', ROOT .. 'authority') ~= AUTHORITY then return 'elsewhere' end

-- The long way to grant: any token, and a lock that somebody may wait for. No token: why.
local function open(by, wish, ttl, before)
  local drawn = call('INCR', TOKENS)
  if drawn > LAST_TOKEN then
    call('DECR', TOKENS)
    return nil, 'exhausted'
  end
  local token = string.format('%.0f', drawn)
  call('PSETEX', place, ttl, 'wanted ' .. by .. ' ' .. token .. wish .. before)
  return token
end

-- The lock's name begins behind `ROOTlock:`.
local lock = string.sub(place, #ROOT + 6)
local queue = ROOT .. 'queue:' .. lock

local function now()
  local clock = call('TIME')
  return clock[1] .. string.format('%03d', math.floor(clock[2] / 1000))
end

-- The holder, if there is one, and how the grant before it ended.
local function read()
  local found = call('GET', place) or ''
  local word, by, token, at, ttl, client, metadata, before =
    string.match(found, '^(%l+ )(%x+) (%d+) (%d+) (%d+)\n([^\n]*)\n(.*)\n([^\n]*)$')
  if not by then return nil, found end
  local holder = { word = word, by = by, token = token, at = at, ttl = ttl, client = client }
  holder.metadata = metadata
  return holder, before
end

local function told(how, holder, waiters)
  local left = math.max(call('PTTL', place), 0)
  return table.concat({ how, holder.client, holder.token, left, holder.at, holder.ttl, waiters or 0,
    holder.metadata }, '\n')
end

-- How the grant of `request` ended, if it is the last that did.
local function ended(before, request)
  local how, token = string.match(before, '^(%l+) ' .. request .. ' (%d+)$')
  return how and how .. '\n\n' .. token
end

local function leave_queue(who)
  call('ZREM', queue, who)
  call('DEL', ROOT .. 'wait:' .. who)
end

-- Grants a free lock to the first in its queue that still gives signs of life, and tells that one.
local function settle()
  local holder, before = read()
  while not holder do
    local first = call('ZRANGE', queue, 0, 0)[1]
    if not first then break end
    local wish = call('HMGET', ROOT .. 'wait:' .. first, 'wish', 'ttl', 'channel')
    if wish[1] then
      local at = now()
      -- It begins now, not when it was wished for.
      local token = open(first, ' ' .. at .. string.match(wish[1], ' %d+\n.*$'), wish[2], before)
      if not token then break end
      call('PUBLISH', wish[3], first .. ' ' .. token .. ' ' .. at)
      holder, before = read()
    end
    leave_queue(first)
  end
  return holder, before
end

local function drop(holder, how)
  call('SET', place, how .. ' ' .. holder.by .. ' ' .. holder.token, 'PX', ENDED_MS)
  settle()
end

local function stale(holder)
  return 'stale\n\n' .. holder.token
end

-- The grant with this key and this token, or why there is none. Token 0: whichever it has.
local function own(grant)
  local request, token = string.match(grant, '^(%x+) (%d+)$')
  local holder, before = settle()
  if holder and holder.by == request then
    if token ~= '0' and token ~= holder.token then return nil, stale(holder) end
    return holder
  end
  if call('EXISTS', ROOT .. 'abandoned:' .. request) == 1 then return nil, 'abandoned' end
  return nil, ended(before, request) or 'not_held'
end

local operations = {}

-- Without a channel to be told on, the caller does not wait.
function operations.acquire(request, wish, ttl, channel)
  local client = string.match(wish, '\n([^\n]*)\n')
  local holder, before = settle()
  if holder and holder.by == request then return told('granted', holder) end
  local over = ended(before, request)
  if over then return over end
  if not holder or holder.client == client then
    leave_queue(request)
    if holder then before = 'superseded ' .. holder.by .. ' ' .. holder.token end
    local token, why = open(request, wish, ttl, before)
    return why or token
  end
  if channel == '' then
    leave_queue(request)
    return told('held', holder)
  end
  if holder.word == 'held ' then
    local rest = string.sub(call('GET', place), 5)
    call('SET', place, 'wanted' .. rest, 'KEEPTTL')
  end
  if not call('ZSCORE', queue, request) then
    if call('ZCARD', queue) >= MOST_WAITERS then return 'full' end
    call('ZADD', queue, call('INCR', ROOT .. 'tickets'), request)
  end
  local waiter = ROOT .. 'wait:' .. request
  call('HSET', waiter, 'wish', wish, 'ttl', ttl, 'channel', channel, 'lock', lock)
  call('PEXPIRE', waiter, ttl)
  -- A queue of the dead goes when nobody has looked at it for longer than any of them may wait.
  call('PEXPIRE', queue, 172800000)
  local first = call('ZRANGE', queue, 0, 0)[1] == request
  return told(first and 'first' or 'queued', holder)
end

function operations.renew(grant, ttl)
  local holder, why = own(grant)
  if not holder then return why end
  if ttl == '0' or ttl == holder.ttl then
    call('PEXPIRE', place, holder.ttl)
  else
    local rest = string.match(call('GET', place), '\n.*$')
    call('SET', place, holder.word .. holder.by .. ' ' .. holder.token .. ' ' .. holder.at .. ' ' .. ttl
      .. rest, 'PX', ttl)
  end
  return told('renewed', (read()))
end

function operations.release(grant)
  local holder, why = own(grant)
  if not holder then return why end
  drop(holder, 'released')
  return 'done'
end

function operations.abandon(request)
  call('SET', ROOT .. 'abandoned:' .. request, '1', 'PX', ABANDONED_MS)
  if lock == '' then
    lock = call('HGET', ROOT .. 'wait:' .. request, 'lock')
    if not lock then return 'unknown' end
    place, queue = ROOT .. 'lock:' .. lock, ROOT .. 'queue:' .. lock
  end
  leave_queue(request)
  local holder = read()
  if holder and holder.by == request then drop(holder, 'abandoned') end
  return 'done'
end

function operations.revoke(token)
  local holder = settle()
  if not holder then return 'not_held' end
  if holder.token ~= token then return stale(holder) end
  drop(holder, 'revoked')
  return 'done'
end

function operations.show()
  local holder, waiters = settle(), 0
  if not holder then return 'free' end
  for _, waiter in ipairs(call('ZRANGE', queue, 0, -1)) do
    waiters = waiters + call('EXISTS', ROOT .. 'wait:' .. waiter)
  end
  return told('held', holder, waiters)
end

return operations[OPERATION](unpack(ARGV))
