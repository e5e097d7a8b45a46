'use strict'

/**
 * Native packages of the published clients that have no binary here, in plain node.
 * `install` makes `require` answer with these instead; the clients themselves are not touched.
 */

const Module = require('node:module')
const { webcrypto } = require('node:crypto')

/** Clients 3.x to 5.x: `new Crypto()`, of which they use `subtle`. */
class Crypto {
    get subtle() {
        return webcrypto.subtle
    }

    getRandomValues(array) {
        return webcrypto.getRandomValues(array)
    }
}

/**
 * Client 5.4 keeps its group keys in one SQLite table. Here it is a list in memory.
 * A statement is told by its verb; its values are (id, stream), (stream) or {$id, $groupKey, $streamId}.
 */
class GroupKeyTable {
    constructor() {
        this.rows = []
    }

    async exec() {} // CREATE TABLE, CREATE INDEX

    async get(statement, ...values) {
        const found = this.rows.filter(matching(values))
        return statement.includes('COUNT(*)') ? { 'COUNT(*)': found.length } : found[0]
    }

    async run(statement, ...values) {
        if (!statement.startsWith('INSERT')) {
            const gone = this.rows.filter(matching(values))
            this.rows = this.rows.filter((row) => !gone.includes(row))
            return { changes: gone.length }
        }
        const [{ $id: id, $groupKey: groupKey, $streamId: streamId }] = values
        if (this.rows.some((row) => row.id === id)) return { changes: 0 }
        this.rows.push({ id, groupKey, streamId })
        return { changes: 1 }
    }
}

function matching(values) {
    const streamId = values.at(-1)
    const id = values.length > 1 ? values[0] : undefined
    return (row) => row.streamId === streamId && (id === undefined || row.id === id)
}

const tables = new Map()

async function open({ filename }) {
    if (!tables.has(filename)) tables.set(filename, new GroupKeyTable())
    return tables.get(filename)
}

const SUBSTITUTES = {
    'node-webcrypto-ossl': { Crypto },
    sqlite: { open },
    sqlite3: { Database: GroupKeyTable },
}

function install() {
    const load = Module._load
    Module._load = function substituted(request, ...rest) {
        return SUBSTITUTES[request] ?? load.call(this, request, ...rest)
    }
}

module.exports = { install }
