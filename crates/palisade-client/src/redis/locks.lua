-- One operation of the lock service, whole: Redis runs a script as one step.
--
--   KEYS[1]  what the names of all keys begin with, with one hash tag around the root
--   ARGV[1]  the authority id that the caller knows; another data set is another authority
--   ARGV[2]  the operation, then its arguments
--
-- Keys, below the root:
--   authority        the id of this data set
--   tokens           the last fencing token drawn, for all locks
--   lock:NAME        hash of the holder; expires with its lease
--   queue:NAME       sorted set of waiting request ids, by ticket
--   wait:ID          hash of a waiting request; expires when it gives no sign of life
--   over:ID          how a grant or a request ended; kept for an hour
--   of:ID            the lock that a request was granted, for abandoning it; kept for an hour more
local root, op = KEYS[1], ARGV[2]
local LAST_TOKEN, REMEMBER_MS, MOST_WAITERS = 9007199254740991, 3600000, 1024

if redis.call('GET', root .. 'authority') ~= ARGV[1] then
  return { 'elsewhere' }
end

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function hold(lock)
  local fields = redis.call('HMGET', root .. 'lock:' .. lock, 'request', 'client', 'token', 'ttl', 'at', 'metadata')
  if not fields[1] then return nil end
  return {
    request = fields[1], client = fields[2], token = fields[3], ttl = fields[4], at = fields[5],
    metadata = fields[6] or '',
    left = math.max(redis.call('PTTL', root .. 'lock:' .. lock), 0),
  }
end

local function remember(request, how, token)
  redis.call('SET', root .. 'over:' .. request, how .. ' ' .. (token or 0), 'PX', REMEMBER_MS)
end

local function remembered(request)
  local over = redis.call('GET', root .. 'over:' .. request)
  if not over then return nil end
  return string.match(over, '^(%a+) (%d+)$')
end

-- How it ended for a request that does not hold; nothing if it never did.
local function ending(request)
  local how, token = remembered(request)
  if how then return { how, '', token } end
  if redis.call('EXISTS', root .. 'of:' .. request) == 1 then return { 'expired', '', '0' } end
end

-- Draws the token and grants: one step, so tokens rise in the order of grants (rule A2).
local function grant(lock, request, client, ttl, metadata)
  if tonumber(redis.call('GET', root .. 'tokens') or '0') >= LAST_TOKEN then return false end
  -- As text: a number of Lua's would be cut to an integer, or spelled with an exponent.
  redis.call('INCR', root .. 'tokens')
  local token = redis.call('GET', root .. 'tokens')
  local key = root .. 'lock:' .. lock
  redis.call('DEL', key)
  redis.call('HSET', key, 'request', request, 'client', client, 'token', token, 'ttl', ttl,
    'at', string.format('%.0f', now_ms), 'metadata', metadata)
  redis.call('PEXPIRE', key, ttl)
  redis.call('SET', root .. 'of:' .. request, lock, 'PX', REMEMBER_MS + ttl)
  return true
end

local function leave_queue(lock, request)
  redis.call('ZREM', root .. 'queue:' .. lock, request)
  redis.call('DEL', root .. 'wait:' .. request)
end

-- Grants a free lock to the first in its queue that still gives signs of life, and wakes that one.
local function settle(lock)
  local queue = root .. 'queue:' .. lock
  while redis.call('EXISTS', root .. 'lock:' .. lock) == 0 do
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    if not first then return end
    local wish = redis.call('HMGET', root .. 'wait:' .. first, 'client', 'ttl', 'metadata', 'channel')
    if wish[1] then
      if not grant(lock, first, wish[1], wish[2], wish[3]) then return end
      redis.call('PUBLISH', wish[4], first)
    end
    leave_queue(lock, first)
  end
end

local function drop(lock, holder, how)
  redis.call('DEL', root .. 'lock:' .. lock)
  remember(holder.request, how, holder.token)
  settle(lock)
end

local function held(how, holder)
  return { how, holder.client, holder.token, holder.left, holder.at, holder.ttl, holder.metadata }
end

-- The grant that `request` is the key of, or why there is none.
local function own(lock, request, token)
  settle(lock)
  local holder = hold(lock)
  if holder and holder.request == request then
    if token ~= '0' and token ~= holder.token then return nil, { 'stale', '', holder.token } end
    return holder
  end
  return nil, ending(request) or { 'not_held' }
end

local operations = {}

function operations.acquire(lock, request, client, ttl, metadata, wait, channel)
  settle(lock)
  local holder = hold(lock)
  if holder and holder.request == request then return held('granted', holder) end
  local over = ending(request)
  if over then return over end
  if not holder or holder.client == client then
    leave_queue(lock, request)
    if not grant(lock, request, client, ttl, metadata) then return { 'exhausted' } end
    if holder then remember(holder.request, 'superseded', holder.token) end
    return held('granted', hold(lock))
  end
  if wait == '0' then
    leave_queue(lock, request)
    return held('held', holder)
  end
  local queue, wish = root .. 'queue:' .. lock, root .. 'wait:' .. request
  if not redis.call('ZSCORE', queue, request) then
    if redis.call('ZCARD', queue) >= MOST_WAITERS then return { 'full' } end
    redis.call('ZADD', queue, redis.call('INCR', root .. 'tickets'), request)
  end
  redis.call('HSET', wish, 'client', client, 'ttl', ttl, 'metadata', metadata, 'channel', channel,
    'lock', lock)
  redis.call('PEXPIRE', wish, ttl)
  -- A queue of the dead goes when nobody has looked at it for longer than any of them may wait.
  redis.call('PEXPIRE', queue, 172800000)
  local first = redis.call('ZRANGE', queue, 0, 0)[1] == request
  return held(first and 'first' or 'queued', holder)
end

function operations.renew(lock, request, token, ttl)
  local holder, why = own(lock, request, token)
  if not holder then return why end
  if ttl == '0' then ttl = holder.ttl end
  redis.call('HSET', root .. 'lock:' .. lock, 'ttl', ttl)
  redis.call('PEXPIRE', root .. 'lock:' .. lock, ttl)
  return held('renewed', hold(lock))
end

function operations.release(lock, request, token)
  local holder, why = own(lock, request, token)
  if not holder then return why end
  drop(lock, holder, 'released')
  return { 'done', '', holder.token }
end

function operations.revoke(lock, token)
  settle(lock)
  local holder = hold(lock)
  if not holder then return { 'not_held' } end
  if holder.token ~= token then return { 'stale', '', holder.token } end
  drop(lock, holder, 'revoked')
  return { 'done', '', holder.token }
end

function operations.abandon(request)
  local lock = redis.call('GET', root .. 'of:' .. request)
    or redis.call('HGET', root .. 'wait:' .. request, 'lock')
  if lock then
    leave_queue(lock, request)
    local holder = hold(lock)
    if holder and holder.request == request then drop(lock, holder, 'released') end
  end
  remember(request, 'abandoned')
  return { 'done' }
end

function operations.show(lock)
  settle(lock)
  local waiters = 0
  for _, request in ipairs(redis.call('ZRANGE', root .. 'queue:' .. lock, 0, -1)) do
    waiters = waiters + redis.call('EXISTS', root .. 'wait:' .. request)
  end
  local holder = hold(lock)
  local view = holder and held('held', holder) or { 'free', '', '0', 0, '0', '0', '' }
  view[8] = waiters
  return view
end

return operations[op](unpack(ARGV, 3))
