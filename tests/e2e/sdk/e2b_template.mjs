// Builds templates through the unmodified E2B SDK and runs them. Usage: node e2b_template.mjs MODULE BASE
import fs from 'node:fs'
import { end, run, same, throws } from './cases.mjs'

const sdk = await import(process.argv[2])
const base = process.argv[3]
const { Sandbox, Template, waitForFile } = sdk

async function inside(template, fn) {
  const sbx = await Sandbox.create(template, { timeoutMs: 60000 })
  try {
    return await fn(sbx)
  } finally {
    await sbx.kill()
  }
}

const out = async (sbx, command, opts) => (await sbx.commands.run(command, opts)).stdout

fs.mkdirSync('ctx/app/sub', { recursive: true })
fs.writeFileSync('ctx/app/main.txt', 'main\n')
fs.writeFileSync('ctx/app/sub/run.sh', '#!/bin/sh\necho ran\n', { mode: 0o755 })
fs.writeFileSync('ctx/one.txt', 'one\n')

const logs = []
await run('build: steps, copies, environment, user, start command', async () => {
  same(await Template.exists('first'), false, 'not there yet')
  const template = Template({ fileContextPath: 'ctx' })
    .fromImage(base)
    .copy('app', '/srv/app')
    .copy('one.txt', 'sub/', { user: 'root', mode: 0o600 })
    .setEnvs({ GREETING: 'a "b" \\ c\' d', TWICE: '$GREETING $GREETING' })
    .runCmd('cat <<END > made\n$GREETING\nEND\nid -un >> made; pwd >> made')
    .runCmd(['echo 1 > /root/one', 'echo 2 > /root/two'], { user: 'root' })
    .setWorkdir('/srv/work')
    .runCmd('echo $TWICE > here; echo said; echo complained >&2')
    .setStartCmd('echo "$GREETING" $(id -un) $(pwd) > /tmp/up; exec sleep 100000', waitForFile('/tmp/up'))
  const built = await Template.build(template, 'first', {
    cpuCount: 2, memoryMB: 512, onBuildLogs: (entry) => logs.push(entry) })
  same(built.name ?? built.alias, 'first', 'its name')
  same(await Template.exists('first'), true, 'there')
})
await run('build: its log', async () => {
  const has = (level, text) => logs.some((l) => l.level === level && l.message === text)
  same([has('info', 'said'), has('warn', 'complained')], [true, true], 'output')
  same(logs.some((l) => l.message.startsWith('COPY app')), true, 'steps')
})
await run('create: it is what was built', () => inside('first', async (sbx) => {
  same(await out(sbx, 'cat /home/user/made'), 'a "b" \\ c\' d\nuser\n/home/user\n', 'a command, its user and place')
  same(await out(sbx, 'cat /srv/app/main.txt; /srv/app/sub/run.sh; stat -c %U /srv/app/main.txt'),
    'main\nran\nuser\n', 'a directory')
  same(await out(sbx, 'stat -c "%U %a" /home/user/sub/one.txt; cat /root/one /root/two', { user: 'root' }),
    'root 600\n1\n2\n', 'a file, and what root did')
  same(await out(sbx, 'id -un; pwd; cat here; echo $TWICE'),
    'user\n/srv/work\na "b" \\ c\' d a "b" \\ c\' d\na "b" \\ c\' d a "b" \\ c\' d\n', 'defaults')
  same(await out(sbx, 'cat /tmp/up; pgrep -u user -x sleep | wc -l'), 'a "b" \\ c\' d user /srv/work\n1\n',
    'the start command runs')
  const info = await sbx.getInfo()
  same([info.templateId, info.cpuCount, info.memoryMB], ['first', 2, 512], 'info')
}))
await run('build: files that are sent again, without the cache', async () => {
  fs.writeFileSync('ctx/one.txt', 'two\n')
  const template = () => Template({ fileContextPath: 'ctx' }).fromImage(base).copy('one.txt', '/f', { forceUpload: true })
  await Template.build(template(), 'forced')
  await Template.build(template().runCmd('date +%N > /tmp/now'), 'forced', { skipCache: true })
  await inside('forced', async (sbx) => same(await out(sbx, 'cat /f'), 'two\n', 'the file'))
  fs.writeFileSync('ctx/one.txt', 'one\n')
})
await run('build: on a template of ours, files that are there are not sent again', async () => {
  const template = Template({ fileContextPath: 'ctx' }).fromTemplate('first')
    .copy('app', '/srv/app').runCmd('pwd > /tmp/second; id -un >> /tmp/second').setUser('root').setWorkdir('/')
  await Template.build(template, 'second', { tags: ['v1', 'v2'] })
  same(await Template.exists('second:v1'), true, 'by its tag')
  await inside('second:v2', async (sbx) => same(
    await out(sbx, 'cat /tmp/second; id -un; pwd; echo $GREETING; cat /tmp/up 2>&1 | wc -l'),
    '/srv/work\nuser\nroot\n/\na "b" \\ c\' d\n1\n', 'inherited, then its own'))
})
await run('tags: given, moved, removed', async () => {
  const id = 'second'
  same((await Template.getTags(id)).map((t) => t.tag).sort(), ['v1', 'v2'], 'as built')
  same((await Template.assignTags('second:v1', ['default', 'v3'])).tags, ['default', 'v3'], 'assigned')
  await inside('second', async (sbx) => same(await out(sbx, 'id -un'), 'root\n', 'by its name now'))
  await Template.removeTags('second', ['v1', 'v2', 'v3'])
  same((await Template.getTags(id)).map((t) => t.tag), ['default'], 'left')
})
await run('build: a command that fails', async () => {
  const template = Template().fromImage(base).runCmd('true').runCmd('echo why >&2; exit 3')
  const e = await throws(sdk.BuildError, () => Template.build(template, 'broken'), 'exit 3')
  if (!/\b3\b/.test(e.message)) throw new Error(`does not say its status: ${e.message}`)
  same(await Template.exists('broken'), false, 'nothing is left of it')
})
await run('build: what cannot be built is refused', async () => {
  await throws(sdk.BuildError, () => Template.build(
    Template().fromTemplate('no-such-base').runCmd('true'), 'broken'), 'base')
  await throws(sdk.BuildError, () => Template.build(
    Template().fromImage(base, { username: 'u', password: 'p' }), 'broken'), 'credentials')
  await throws(sdk.BuildError, () => Template.build(
    Template().fromImage(base).setStartCmd('true', 'exit 1').setWorkdir('not/absolute'), 'broken'), 'work directory')
  await throws(sdk.BuildError, () => Template.build(Template().fromImage(base), 'Not_A_Name'), 'name')
})
await run('build: again under the same name', async () => {
  await Template.build(Template().fromImage(base).runCmd('echo new > /tmp/which'), 'second')
  await inside('second', async (sbx) => same(await out(sbx, 'cat /tmp/which; id -un; pwd'), 'new\nuser\n/home/user\n', 'new'))
})
await run('build: a Dockerfile', async () => {
  fs.writeFileSync('ctx/Dockerfile', `FROM ${base}\nENV A=1 B=2\nCOPY one.txt /copied\nRUN echo $A$B > /both\nWORKDIR /srv\n`)
  await Template.build(Template({ fileContextPath: 'ctx' }).fromDockerfile('ctx/Dockerfile'), 'docker')
  await inside('docker', async (sbx) => same(await out(sbx, 'cat /both /copied; id -un; pwd; echo $A'),
    '12\none\nuser\n/srv\n1\n', 'what it says'))
})
await run('delete', async () => {
  for (const name of ['first', 'second', 'docker', 'forced'])
    same(await Sandbox.deleteSnapshot(name), true, name)
  same(await Template.exists('first'), false, 'gone')
  await throws(sdk.SandboxError, () => Sandbox.create('first'), 'create')
})

end()
