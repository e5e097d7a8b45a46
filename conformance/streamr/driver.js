'use strict'

/**
 * One published client, told over standard input what to do, one JSON object a line:
 *
 *     {"id": 1, "do": "subscribe", "client": "a", "sub": "s", "stream": "river"}
 *
 * Answers and events go to standard output: {"id": 1, "result": ...}, {"id": 1, "error": "..."} or
 * {"event": "message", "client": "a", "sub": "s", ...}. What the client itself prints goes to standard error.
 * `node driver.js 4.1.6` runs the client installed as `client-4.1.6`.
 */

const readline = require('node:readline')

require('./substitutes').install()

const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`)
for (const level of ['log', 'info', 'warn', 'debug']) console[level] = console.error

const version = process.argv[2]
const Adapter = require('./adapters').of(version)
const published = require(`client-${version}`)
const clients = new Map()

const words = (error) => (error instanceof Error ? error.message : String(error))

function open({ client: name, ...options }) {
    const report = (event, details) => say({ event, client: name, ...details })
    const adapter = new Adapter(published, options, report)
    clients.set(name, adapter)
    return adapter.connect()
}

async function close({ client: name }) {
    const adapter = clients.get(name)
    clients.delete(name)
    await adapter.close()
}

async function perform({ id, do: action, ...details }) {
    try {
        const { client } = details
        const result = action === 'open' ? await open(details)
            : action === 'close' ? await close(details)
                : await clients.get(client)[action](details)
        say({ id, result: result ?? null })
    } catch (error) {
        say({ id, error: words(error) })
    }
}

// A client's stray rejection is an event like others: a test that waits for it sees it, and the process goes on.
process.on('unhandledRejection', (error) => say({ event: 'stray', error: words(error) }))
process.on('uncaughtException', (error) => say({ event: 'stray', error: words(error) }))

readline.createInterface({ input: process.stdin })
    .on('line', (line) => perform(JSON.parse(line)))
    .on('close', () => process.exit(0))

say({ event: 'ready', version })
