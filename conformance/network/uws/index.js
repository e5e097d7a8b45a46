'use strict'

/**
 * Stands in for uWebSockets.js: an application with WebSocket routes, of which the published nodes use the callbacks
 * upgrade, open, message, pong and close, and of a socket send, end, close, ping and getBufferedAmount.
 * HTTP routes are accepted and never called.
 */

const http = require('node:http')
const WebSocket = require('ws')

const bytes = (data) => new Uint8Array(Buffer.from(data)).buffer

/** The published code tells a server's socket from a client's by this name. */
const KIND = { name: 'uWS.WebSocket' }

function serverSocket(ws, data, behavior) {
    const socket = {
        ...data,
        constructor: KIND,
        OPEN: WebSocket.OPEN,
        get readyState() {
            return ws.readyState
        },
        send: (message) => {
            ws.send(message)
            return true
        },
        end: (code, reason) => ws.close(code, reason),
        close: () => ws.terminate(),
        ping: () => ws.ping(),
        getBufferedAmount: () => ws.bufferedAmount,
    }
    ws.on('message', (message, isBinary) => behavior.message(socket, bytes(message), isBinary))
    ws.on('pong', () => behavior.pong(socket))
    ws.on('close', (code, reason) => behavior.close(socket, code, bytes(reason)))
    ws.on('error', () => {})
    return socket
}

function upgrade(behavior, query, request, connection, head) {
    const extra = []
    const server = new WebSocket.Server({ noServer: true, maxPayload: behavior.maxPayloadLength })
    server.on('headers', (headers) => headers.push(...extra))
    const response = {
        writeStatus: () => response,
        writeHeader: (name, value) => {
            extra.push(`${name}: ${value}`)
            return response
        },
        upgrade: (data) => server.handleUpgrade(request, connection, head, (ws) => {
            behavior.open(serverSocket(ws, data, behavior))
        }),
    }
    const asked = {
        getQuery: (name) => (name === undefined ? query : new URLSearchParams(query).get(name)),
        getHeader: (name) => request.headers[name] || '',
    }
    behavior.upgrade(response, asked, {})
}

function App() {
    const routes = new Map()
    const server = http.createServer((request, response) => response.writeHead(404).end())
    server.on('upgrade', (request, connection, head) => {
        const [path, query = ''] = request.url.split('?')
        const behavior = routes.get(path)
        if (behavior === undefined) {
            connection.destroy()
        } else {
            upgrade(behavior, query, request, connection, head)
        }
    })
    const app = {
        ws: (path, behavior) => {
            routes.set(path, behavior)
            return app
        },
        listen: (...parameters) => {
            const [port, host] = [parameters.at(-2), parameters.at(-3) || '127.0.0.1']
            const done = parameters.at(-1)
            server.once('error', () => done(false))
            server.listen(port, host, () => done(server))
            return app
        },
    }
    for (const method of ['get', 'post', 'put', 'del', 'any', 'options']) app[method] = () => app
    return app
}

module.exports = { App, SSLApp: App, us_listen_socket_close: (server) => server.close() }
