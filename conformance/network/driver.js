'use strict'

/**
 * One published version of the network, told over standard input what to do, one JSON object a line:
 *
 *     {"id": 1, "do": "node", "name": "n", "port": 1234, "trackers": ["ws://127.0.0.1:1"]}
 *
 * Orders: tracker, node, subscribe, unsubscribe, publish, resend, stop. Answers and events go to standard output, what
 * the package itself prints to standard error. `node driver.js 20.1.0` runs the package installed as `network-20.1.0`.
 */

const path = require('node:path')
const readline = require('node:readline')

const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`)
for (const level of ['log', 'info', 'warn', 'debug']) console[level] = console.error

// Version 22 writes its log to standard output.
process.env.NOLOG = '1'

const version = process.argv[2]
const major = Number(version.split('.')[0])
const home = `network-${version}`
const network = require(`${home}/src/composition`)
const protocol = require(require.resolve('streamr-client-protocol', {
    paths: [path.dirname(require.resolve(`${home}/package.json`))],
}))
const running = new Map()

const HOST = '127.0.0.1'
const PING = 1000

const startTracker = {
    19: ({ name, port }) => network.startTracker(HOST, port, name, 4, null, name, null, PING),
    20: ({ name, port }) => network.startTracker({ host: HOST, port, id: name, exposeHttpEndpoints: false, pingInterval: PING }),
    22: ({ name, port }) => network.startTracker({ host: HOST, port, id: name, attachHttpEndpoints: false, pingInterval: PING }),
}

async function dialling(node, trackers) {
    for (const tracker of trackers) node.addBootstrapTracker(tracker)
    return node
}

const startNode = {
    19: async ({ name, port, trackers }) =>
        dialling(await network.startNetworkNode(HOST, port, name, [], null, name, null, PING), trackers),
    20: async ({ name, port, trackers }) =>
        dialling(await network.startNetworkNode(HOST, port, name, [], null, name, null, PING), trackers),
    22: async ({ name, port, trackers }) => {
        const node = await network.startNetworkNode({ host: HOST, port, id: name, trackers, pingInterval: PING })
        node.start()
        return node
    },
}

const orders = {
    async tracker(order) {
        running.set(order.name, await startTracker[major](order))
    },
    async node(order) {
        const node = await startNode[major](order)
        node.addMessageListener((message) => say({
            event: 'message', name: order.name, raw: JSON.parse(message.serialize()),
        }))
        running.set(order.name, node)
    },
    subscribe: ({ name, stream }) => running.get(name).subscribe(stream, 0),
    unsubscribe: ({ name, stream }) => running.get(name).unsubscribe(stream, 0),
    publish: ({ name, raw }) => running.get(name).publish(protocol.MessageLayer.StreamMessage.deserialize(raw)),
    resend: ({ name, stream, last }) => new Promise((resolve) => {
        const found = []
        const answers = running.get(name).requestResendLast(stream, 0, `resend-${Math.random()}`, last)
        answers.on('data', (answer) => answer.streamMessage && found.push(JSON.parse(answer.streamMessage.serialize())))
        answers.on('end', () => resolve(found))
    }),
    async stop({ name }) {
        const stopped = running.get(name)
        running.delete(name)
        await stopped.stop()
    },
}

const words = (error) => (error instanceof Error ? error.stack : String(error))

async function perform({ id, do: action, ...order }) {
    try {
        say({ id, result: (await orders[action](order)) ?? null })
    } catch (error) {
        say({ id, error: words(error) })
    }
}

process.on('unhandledRejection', (error) => say({ event: 'stray', error: words(error) }))
process.on('uncaughtException', (error) => say({ event: 'stray', error: words(error) }))

readline.createInterface({ input: process.stdin })
    .on('line', (line) => perform(JSON.parse(line)))
    .on('close', () => process.exit(0))

say({ event: 'ready', version })
