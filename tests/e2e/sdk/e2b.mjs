// Drives Hearth through the unmodified E2B SDK. Usage: node e2b.mjs MODULE
import crypto from 'node:crypto'
import http from 'node:http'
import { check, end, run, same, throws } from './cases.mjs'

const sdk = await import(process.argv[2])
const { Sandbox } = sdk
const opts = { timeoutMs: 120000 }

async function until(condition, what, ms = 20000) {
  const end = Date.now() + ms
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`not in time: ${what}`)
    await new Promise((r) => setTimeout(r, 50))
  }
}

const sha = (data) => crypto.createHash('sha256').update(data).digest('hex')
const sbx = await Sandbox.create('base', { ...opts, metadata: { owner: 'a b', 'k/ö': 'v=1&2' }, envs: { FROM_CREATE: 'yes' } })

await run('create: id is lower case, running', async () => {
  check(/^[a-z0-9]+$/.test(sbx.sandboxId), sbx.sandboxId)
  check(await sbx.isRunning(), 'isRunning')
})

// ---- commands ----
await run('commands: output, exit code', async () => {
  const r = await sbx.commands.run('echo out; echo err >&2')
  same([r.exitCode, r.stdout, r.stderr], [0, 'out\n', 'err\n'], 'result')
})
await run('commands: non-zero exit throws with output', async () => {
  const e = await throws(sdk.CommandExitError, () => sbx.commands.run('echo x; exit 7'), 'exit 7')
  same([e.exitCode, e.stdout, e.error], [7, 'x\n', 'exit status 7'], 'error')
})
await run('commands: user, cwd, envs', async () => {
  same((await sbx.commands.run('id -un; pwd')).stdout, 'user\n/home/user\n', 'default user')
  same((await sbx.commands.run('id -un; pwd', { user: 'root' })).stdout, 'root\n/root\n', 'root')
  same((await sbx.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n', 'cwd')
  const r = await sbx.commands.run('echo $FROM_CREATE $A $E2B_SANDBOX $E2B_SANDBOX_ID', { envs: { A: 'b c' } })
  same(r.stdout, `yes b c true ${sbx.sandboxId}\n`, 'envs')
})
await run('commands: missing cwd is an invalid argument', () =>
  throws(sdk.InvalidArgumentError, () => sbx.commands.run('pwd', { cwd: '/nowhere' }), 'cwd'))
await run('commands: unknown user is an authentication error', () =>
  throws(sdk.AuthenticationError, () => sbx.commands.run('true', { user: 'nobody-such' }), 'user'))
await run('commands: streaming as it comes', async () => {
  const seen = []
  const r = await sbx.commands.run('echo one; sleep 0.3; echo two; echo three >&2', {
    onStdout: (d) => { seen.push(['o', d, Date.now()]) }, onStderr: (d) => { seen.push(['e', d, Date.now()]) } })
  same(seen.map((s) => s[0] + s[1]).join(''), 'oone\notwo\nethree\n', 'order')
  check(seen[1][2] - seen[0][2] >= 200, 'the first came before the second was there')
  same(r.stdout, 'one\ntwo\n', 'all of it')
})
await run('commands: time-out kills', async () => {
  await throws(sdk.TimeoutError, () => sbx.commands.run('sleep 60; touch /tmp/late', { timeoutMs: 1500 }), 'time-out')
  const r = await sbx.commands.run('pgrep -x sleep || echo none', { user: 'root' })
  same(r.stdout, 'none\n', 'nothing is left of it')
})
await run('commands: background, wait, kill', async () => {
  const h = await sbx.commands.run('sleep 0.2; echo bg', { background: true })
  check(h.pid > 0, 'pid')
  same((await h.wait()).stdout, 'bg\n', 'wait')
  const k = await sbx.commands.run('sleep 600', { background: true })
  check(await k.kill(), 'killed')
  const e = await throws(sdk.CommandExitError, () => k.wait(), 'killed process')
  check(e.error?.includes('killed'), `error says so: ${e.error}`)
  same(await sbx.commands.kill(k.pid), false, 'twice is no error')
})
await run('commands: stdin, close', async () => {
  const h = await sbx.commands.run('cat; echo end', { background: true, stdin: true })
  await sbx.commands.sendStdin(h.pid, 'hello\n')
  if (sbx.commands.closeStdin) await sbx.commands.closeStdin(h.pid)
  else await sbx.commands.kill(h.pid)
  const r = await h.wait().catch((e) => e)
  check(r.stdout.startsWith('hello\n'), r.stdout)
})
await run('commands: list and connect', async () => {
  const h = await sbx.commands.run('while :; do echo tick; sleep 0.2; done', { background: true })
  const list = await sbx.commands.list()
  const mine = list.find((p) => p.pid === h.pid)
  same([mine?.cmd, mine?.args?.[0]], ['/bin/bash', '-l'], 'listed')
  let got = ''
  const other = await sbx.commands.connect(h.pid, { onStdout: (d) => { got += d } })
  await until(() => got.includes('tick'), 'output of a connected process')
  await other.disconnect()
  check(await h.kill(), 'killed')
  await h.wait().catch(() => {})
  check(!(await sbx.commands.list()).some((p) => p.pid === h.pid), 'not listed any more')
})
await run('commands: 8 MiB of output, byte exact', async () => {
  const r = await sbx.commands.run('head -c 6291456 /dev/urandom | base64 -w0 | tee /tmp/big | sha256sum >&2; cat /tmp/big')
  same(sha(r.stdout), r.stderr.split(' ')[0], 'sha256')
})
await run('commands: UTF-8 over piece borders', async () => {
  const text = 'ü€😀'.repeat(20000)
  await sbx.files.write('/tmp/u', text)
  same(sha((await sbx.commands.run('cat /tmp/u')).stdout), sha(text), 'text')
})
await run('commands: 20 at once', async () => {
  const all = await Promise.all([...Array(20).keys()].map((i) => sbx.commands.run(`echo ${i}`)))
  same(all.map((r) => r.stdout.trim()), [...Array(20).keys()].map(String), 'each its own')
})

// ---- pty ----
await run('pty: create, input, resize, kill', async () => {
  let out = ''
  const dec = new TextDecoder()
  const t = await sbx.pty.create({ cols: 80, rows: 24, onData: (d) => { out += dec.decode(d, { stream: true }) } })
  await sbx.pty.sendInput(t.pid, new TextEncoder().encode('stty size; echo $TERM-$((40+2))\n'))
  await until(() => out.includes('24 80') && out.includes('xterm-256color-42'), 'size and TERM')
  await sbx.pty.resize(t.pid, { cols: 100, rows: 30 })
  await sbx.pty.sendInput(t.pid, new TextEncoder().encode('stty size\n'))
  await until(() => out.includes('30 100'), 'new size')
  check(await sbx.pty.kill(t.pid), 'killed')
})

// ---- files ----
await run('files: write, read in every format', async () => {
  const info = await sbx.files.write('a.txt', 'hello')
  same([info.path, info.name], ['/home/user/a.txt', 'a.txt'], 'info')
  same(await sbx.files.read('a.txt'), 'hello', 'text')
  same([...await sbx.files.read('a.txt', { format: 'bytes' })], [...Buffer.from('hello')], 'bytes')
  same(await (await sbx.files.read('a.txt', { format: 'blob' })).text(), 'hello', 'blob')
  const reader = (await sbx.files.read('a.txt', { format: 'stream' })).getReader()
  same(Buffer.from((await reader.read()).value).toString(), 'hello', 'stream')
  await reader.cancel()
})
await run('files: empty file', async () => {
  await sbx.files.write('/tmp/empty', '')
  same(await sbx.files.read('/tmp/empty'), '', 'empty')
})
await run('files: owner and modes, parents', async () => {
  await sbx.files.write('/home/user/d1/d2/f', 'x')
  const r = await sbx.commands.run('stat -c "%U %G %a %n" /home/user/d1 /home/user/d1/d2 /home/user/d1/d2/f')
  same(r.stdout, 'user user 755 /home/user/d1\nuser user 755 /home/user/d1/d2\nuser user 644 /home/user/d1/d2/f\n', 'stat')
})
await run('files: where only root may write', async () => {
  await sbx.files.write('/opt/tool/x', 'y')
  same((await sbx.commands.run('stat -c %U /opt/tool/x; cat /opt/tool/x')).stdout, 'user\ny', 'owner')
})
await run('files: many at once', async () => {
  const r = await sbx.files.write([{ path: 'm/1', data: 'one' }, { path: '/tmp/m2', data: new Blob(['two']).stream ? new Blob(['two']) : 'two' }])
  same(r.map((i) => i.path), ['/home/user/m/1', '/tmp/m2'], 'paths')
  same(await sbx.files.read('/tmp/m2'), 'two', 'second')
})
await run('files: list, depth, info', async () => {
  await sbx.commands.run('mkdir -p t/sub && echo 1 > t/b && echo 22 > t/sub/c && ln -s b t/link && ln -s /nowhere t/dead')
  const list = await sbx.files.list('t')
  same(list.filter((e) => e.name !== 'dead').map((e) => [e.name, e.type, e.size]),
    [['b', 'file', 2], ['link', 'file', 1], ['sub', 'dir', list.find((e) => e.name === 'sub').size]], 'list')
  same(list.find((e) => e.name === 'link').symlinkTarget, '/home/user/t/b', 'symlink')
  const deep = await sbx.files.list('t', { depth: 2 })
  check(deep.some((e) => e.path === '/home/user/t/sub/c'), 'depth 2')
  const info = await sbx.files.getInfo('t/b')
  same([info.path, info.type, info.size, info.mode, info.permissions, info.owner, info.group],
    ['/home/user/t/b', 'file', 2, 0o644, '-rw-r--r--', 'user', 'user'], 'info')
  check(Math.abs(info.modifiedTime - Date.now()) < 60000, 'modified time')
})
await run('files: exists, makeDir, rename, remove', async () => {
  same(await sbx.files.exists('nope'), false, 'exists')
  same(await sbx.files.makeDir('x/y/z'), true, 'made')
  same(await sbx.files.makeDir('x/y/z'), false, 'there already')
  await sbx.files.write('x/f', '1')
  same((await sbx.files.rename('x/f', 'x/new/g')).path, '/home/user/x/new/g', 'renamed')
  same(await sbx.files.exists('x/f'), false, 'old name')
  await sbx.files.remove('x')
  same(await sbx.files.exists('x'), false, 'removed')
})
await run('files: errors', async () => {
  const Missing = sdk.FileNotFoundError ?? sdk.NotFoundError
  await throws(Missing, () => sbx.files.read('/no/such'), 'read')
  await throws(Missing, () => sbx.files.list('/no/such'), 'list')
  await throws(sdk.InvalidArgumentError, () => sbx.files.read('/tmp'), 'read of a directory')
  await throws(sdk.InvalidArgumentError, () => sbx.files.list('/etc/passwd'), 'list of a file')
})
await run('files: 64 MiB both ways', async () => {
  const data = crypto.randomBytes(64 << 20)
  await sbx.files.write('/tmp/64m', new Blob([data]), { requestTimeoutMs: 300000 })
  same((await sbx.commands.run('sha256sum < /tmp/64m')).stdout.split(' ')[0], sha(data), 'up')
  const back = await sbx.files.read('/tmp/64m', { format: 'bytes', requestTimeoutMs: 300000 })
  same(sha(back), sha(data), 'down')
  await sbx.files.remove('/tmp/64m')
})
await run('files: watch', async () => {
  await sbx.files.makeDir('w/sub')
  const events = []
  const w = await sbx.files.watchDir('w', (e) => { events.push(`${e.type} ${e.name}`) }, { recursive: true })
  await sbx.files.write('w/f', '1')
  await sbx.files.write('w/sub/g', '1')
  await until(() => events.includes('create f') && events.some((e) => e === 'write f') && events.includes('create sub/g'),
    `events: ${events}`)
  await sbx.files.remove('w/f')
  await until(() => events.includes('remove f'), `remove: ${events}`)
  await w.stop()
  await throws(sdk.FileNotFoundError ?? sdk.NotFoundError, () => sbx.files.watchDir('/no/such', () => {}), 'missing')
})
await run('files: signed URLs', async () => {
  const up = await sbx.uploadUrl('signed.txt', { useSignatureExpiration: 60000 })
  const form = new FormData()
  form.append('file', new Blob(['signed']), 'signed.txt')
  const headers = { 'E2b-Sandbox-Id': sbx.sandboxId, 'E2b-Sandbox-Port': '49983' }
  const put = await fetch(up, { method: 'POST', body: form, headers })
  same(put.status, 200, await put.text())
  const down = await sbx.downloadUrl('signed.txt', { useSignatureExpiration: 60000 })
  same(await (await fetch(down, { headers })).text(), 'signed', 'download')
  const bad = down.replace(/signature=v1_..../, 'signature=v1_AAAA')
  same((await fetch(bad, { headers })).status, 401, 'wrong signature')
  same((await fetch(down.replace(/[&?]signature_expiration=\d+/, '$&1'), { headers })).status, 401, 'other expiration')
})

// ---- life ----
await run('info, timeout, metrics', async () => {
  const info = await sbx.getInfo()
  same([info.sandboxId, info.templateId, info.state, info.metadata], [sbx.sandboxId, 'base', 'running',
    { owner: 'a b', 'k/ö': 'v=1&2' }], 'info')
  await sbx.setTimeout(300000)
  const later = await sbx.getInfo()
  check(Math.abs(later.endAt - Date.now() - 300000) < 15000, `end ${later.endAt}`)
  const m = (await sbx.getMetrics())[0]
  check(m.cpuCount >= 1 && m.memTotal > 0 && m.memUsed > 0 && m.diskTotal > 0, JSON.stringify(m))
})
await run('list with filters and pages', async () => {
  const other = await Sandbox.create('base', opts)
  const all = Sandbox.list({ limit: 1 })
  const ids = []
  while (all.hasNext) ids.push(...(await all.nextItems()).map((s) => s.sandboxId))
  check(ids.includes(sbx.sandboxId) && ids.includes(other.sandboxId), 'both, page by page')
  const mine = await Sandbox.list({ query: { metadata: { owner: 'a b', 'k/ö': 'v=1&2' }, state: ['running'] } }).nextItems()
  same(mine.map((s) => s.sandboxId), [sbx.sandboxId], 'by metadata')
  same((await Sandbox.list({ query: { state: ['paused'] } }).nextItems()).length, 0, 'none paused')
  check(await other.kill(), 'killed')
  same(await Sandbox.kill(other.sandboxId), false, 'twice')
})
await run('connect from elsewhere', async () => {
  const again = await Sandbox.connect(sbx.sandboxId)
  same((await again.commands.run('cat a.txt')).stdout, 'hello', 'same sandbox')
})
await run('ports by header, and not open', async () => {
  await sbx.files.write('s.py', `import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        n = int(self.headers['content-length']); b = self.rfile.read(n)
        self.send_response(201); self.send_header('x-mine', 'yes'); self.end_headers(); self.wfile.write(b[::-1])
server = http.server.HTTPServer(('127.0.0.1', 8123), H)
open('up', 'w').close()
server.serve_forever()`)
  const h = await sbx.commands.run('python3 s.py', { background: true })
  await sbx.commands.run('while [ ! -e up ]; do sleep 0.1; done') // one question, the guest has its CPU for itself
  const base = process.env.E2B_SANDBOX_URL
  const headers = { 'E2b-Sandbox-Id': sbx.sandboxId, 'E2b-Sandbox-Port': '8123' }
  const r = await fetch(`${base}/a?b=c`, { method: 'POST', body: 'abc', headers })
  same([r.status, r.headers.get('x-mine'), await r.text()], [201, 'yes', 'cba'], 'answer')
  const byName = await new Promise((resolve, reject) => {
    const q = http.request(`${base}/x`, { method: 'POST', headers: { Host: sbx.getHost(8123), 'Content-Length': 3 } },
      (a) => { let t = ''; a.on('data', (d) => { t += d }); a.on('end', () => resolve([a.statusCode, t])) })
    q.on('error', reject)
    q.end('xyz')
  })
  same(byName, [201, 'zyx'], 'by host name')
  const closed = await fetch(`${base}/`, { headers: { ...headers, 'E2b-Sandbox-Port': '9' } })
  same([closed.status, (await closed.json()).port], [502, 9], 'closed port')
  await h.kill()
})
await run('pause, auto resume, resume', async () => {
  const h = await sbx.commands.run('for i in $(seq 1000); do echo $i > n; sleep 0.1; done', { background: true })
  await sbx.files.write('/dev/shm/mem', 'kept')
  await until(() => sbx.files.exists('n'), 'the process runs')
  same(await sbx.pause(), true, 'paused')
  same(await sbx.pause(), false, 'twice')
  same((await sbx.getInfo()).state, 'paused', 'state')
  same(await sbx.files.read('/dev/shm/mem'), 'kept', 'a read wakes it')
  same((await sbx.getInfo()).state, 'running', 'state')
  const before = Number(await sbx.files.read('n'))
  await until(async () => Number(await sbx.files.read('n')) > before, 'the process goes on')
  await sbx.pause()
  const again = await Sandbox.connect(sbx.sandboxId)
  same((await again.commands.run('cat /dev/shm/mem')).stdout, 'kept', 'connect wakes it')
  await sbx.commands.kill(h.pid)
})
await run('snapshot, new sandbox of it', async () => {
  await sbx.files.write('/dev/shm/snap', 'one')
  const s = await sbx.createSnapshot()
  await sbx.files.write('/dev/shm/snap', 'two')
  const list = await Sandbox.listSnapshots({ sandboxId: sbx.sandboxId }).nextItems()
  check(list.some((x) => x.snapshotId === s.snapshotId), 'listed')
  const b = await Sandbox.create(s.snapshotId, opts)
  same(await b.files.read('/dev/shm/snap'), 'one', 'as it was')
  check(b.sandboxId !== sbx.sandboxId, 'another one')
  await b.kill()
  same(await Sandbox.deleteSnapshot(s.snapshotId), true, 'deleted')
  same(await Sandbox.deleteSnapshot(s.snapshotId), false, 'twice')
})
await run('fork', async () => {
  if (!sbx.fork && !Sandbox.fork) return
  await sbx.files.write('/dev/shm/fork', 'f')
  const made = await (sbx.fork ? sbx.fork({ count: 2 }) : Sandbox.fork(sbx.sandboxId, { count: 2 }))
  const children = (Array.isArray(made) ? made : [made]).map((m) => m.sandbox ?? m)
  same(children.length, 2, 'children')
  for (const c of children) {
    same(await c.files.read('/dev/shm/fork'), 'f', 'memory')
    await c.kill()
  }
})

// ---- errors ----
await run('errors: authentication', async () => {
  await throws(sdk.AuthenticationError, () => Sandbox.create('base', { apiKey: `e2b_${'0'.repeat(40)}` }), 'wrong key')
})
await run('errors: not found', async () => {
  const Missing = sdk.SandboxNotFoundError ?? sdk.NotFoundError
  await throws(Missing, () => Sandbox.getInfo('inosuchsandbox'), 'info')
  await throws(Missing, () => Sandbox.setTimeout('inosuchsandbox', 1000), 'timeout')
  await throws(sdk.NotFoundError ?? Missing, () => Sandbox.connect('inosuchsandbox'), 'connect')
})
await run('errors: unknown template', async () => {
  const e = await throws(sdk.SandboxError, () => Sandbox.create('no-such-template', opts), 'template')
  check(e.message.includes('no-such-template'), e.message)
})
await run('kill: calls after it say so', async () => {
  check(await sbx.kill(), 'killed')
  same(await sbx.isRunning(), false, 'isRunning')
  await throws(sdk.SandboxError, () => sbx.commands.run('true'), 'command')
})

end()
