// Cases of a client's script: one line each, "ok NAME" or "FAIL NAME: why"; end() exits 1 when one failed.
let failed = 0

export function check(condition, what) {
  if (!condition) throw new Error(`not so: ${what}`)
}

export function same(got, wanted, what) {
  const [a, b] = [JSON.stringify(got), JSON.stringify(wanted)]
  if (a !== b) throw new Error(`${what}: got ${a?.slice(0, 300)}, wanted ${b?.slice(0, 300)}`)
}

export async function throws(type, fn, what) {
  try {
    await fn()
  } catch (e) {
    if (e instanceof type) return e
    throw new Error(`${what}: threw ${e?.constructor?.name}: ${e?.message}, wanted ${type.name}`)
  }
  throw new Error(`${what}: did not throw ${type.name}`)
}

export async function run(name, fn) {
  const started = Date.now()
  try {
    await fn()
    console.log(`ok ${name} ${Date.now() - started} ms`)
  } catch (e) {
    failed++
    console.log(`FAIL ${name}: ${e?.stack ?? e}`.replaceAll('\n', ' | '))
  }
}

export function end() {
  process.exit(failed ? 1 : 0)
}
