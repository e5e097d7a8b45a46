'use strict'

/** The published clients' three ways of being called, as one. A client's version chooses its row of `ERAS`. */

const once = (emitter, event) => new Promise((resolve) => {
    emitter.once(event, resolve)
})

/** A stream's own members; 0.12.2 has no `toObject`, and its streams hold their client. */
function plain(value) {
    if (value?.toObject) return value.toObject()
    if (!value?._client) return value
    const { _client: client, ...members } = value
    return members
}

/** What all eras share: subscriptions by name, and what is reported of a message. */
class Adapter {
    constructor(published, options, report) {
        this.options = options
        this.report = report
        this.subs = new Map()
        this.kept = new Map()
        this.client = this.make(published)
        for (const event of ['connected', 'disconnected']) this.client.on(event, () => report(event))
        this.client.on('error', (error) => report('error', { error: error?.message ?? String(error) }))
    }

    make(published) {
        const { url, restUrl, privateKey, settings } = this.options
        const auth = privateKey ? { privateKey } : {}
        const Client = published.StreamrClient ?? published
        return new Client({ url, restUrl, auth, autoConnect: false, autoDisconnect: false, ...settings })
    }

    connect() {
        return this.client.connect()
    }

    login() {
        return this.client.session.getSessionToken()
    }

    async close() {
        if (this.client.isConnected()) await this.client.disconnect()
    }

    /** A method of the client, or of the stream a client keeps under a name; `values` are set on it before. */
    async call({ on, method, values = {}, args = [], keep }) {
        const target = Object.assign(on ? this.kept.get(on) : this.client, values)
        const result = await target[method](...args)
        if (keep) this.kept.set(keep, result)
        return Array.isArray(result) ? result.map(plain) : plain(result)
    }

    /** The callback of a subscription: reports each message under the subscription's name. */
    onMessage(sub) {
        return (content, message) => this.report('message', { sub, content, ...this.describe(message) })
    }

    watch(name, sub) {
        this.subs.set(name, sub)
        sub.on('subscribed', () => this.report('subscribed', { sub: name }))
        sub.on('error', (error) => this.report('error', { sub: name, error: error?.message ?? String(error) }))
    }
}

/** 0.x and 1.x: callbacks; a resend is part of a subscription; control 0. */
class Callbacks extends Adapter {
    make(published) {
        const { url, restUrl, privateKey, apiKey, settings } = this.options
        const auth = privateKey ? { auth: { privateKey } } : { authKey: apiKey, apiKey }
        return new published({ url, restUrl, autoConnect: false, autoDisconnect: false, ...auth, ...settings })
    }

    async connect() {
        const connected = once(this.client, 'connected')
        await this.client.connect()
        await connected
    }

    describe(message) {
        return {
            partition: message.streamPartition,
            timestamp: message.timestamp,
            offset: message.offset,
            publisher: message.publisherAddress,
            signatureType: message.signatureType ?? 0,
        }
    }

    async subscribe({ sub: name, stream, partition, resend }) {
        const sub = this.client.subscribe({ stream, partition, ...this.resendOptions(resend) }, this.onMessage(name))
        this.watch(name, sub)
        for (const event of ['resent', 'no_resend']) sub.on(event, () => this.report('resent', { sub: name }))
        await once(sub, 'subscribed')
    }

    resendOptions(resend) {
        if (!resend) return {}
        if (resend.last) return { resend_last: resend.last }
        if (resend.all) return { resend_all: true }
        if (resend.fromTime) return { resend_from_time: resend.fromTime }
        return resend.to ? { resend_from: resend.from, resend_to: resend.to } : { resend_from: resend.from }
    }

    /** 1.0.2 says that a resend is done before it has handed out its messages: so many are waited for. */
    async resend({ stream, partition, resend, count }) {
        const messages = []
        let complete
        const all = new Promise((resolve) => {
            complete = resolve
        })
        if (!count) complete()
        const sub = this.client.subscribe({ stream, partition, ...this.resendOptions(resend) }, (content, message) => {
            if (messages.push({ content, ...this.describe(message) }) === count) complete()
        })
        await Promise.all([all, Promise.race([once(sub, 'resent'), once(sub, 'no_resend')])])
        const gone = once(sub, 'unsubscribed')
        this.client.unsubscribe(sub)
        await gone
        return messages
    }

    async unsubscribe({ sub: name }) {
        const sub = this.subs.get(name)
        const gone = once(sub, 'unsubscribed')
        this.client.unsubscribe(sub)
        await gone
    }

    /** The client checks its own state before it asks; this asks regardless, as a client out of step would. */
    async unsubscribeUnknown({ stream }) {
        this.client._requestUnsubscribe(stream)
    }

    async publish({ stream, content, timestamp, key }) {
        if (this.client.produceToStream) return this.client.produceToStream(stream, content, key)
        await this.client.publish(stream, content, timestamp)
        return undefined
    }
}

/** 2.x to 4.x: callbacks and promises; resends by reference; control 1, from 4.1 on control 2. */
class References extends Adapter {
    make(published) {
        const client = super.make(published)
        client.onError = () => {}
        return client
    }

    async connect() {
        const connected = once(this.client, 'connected')
        await this.client.connect()
        await connected
    }

    describe(message) {
        return {
            partition: message.getStreamPartition(),
            timestamp: message.getTimestamp(),
            sequence: message.messageId.sequenceNumber,
            publisher: message.getPublisherId(),
            signatureType: message.signatureType ?? 0,
            encryptionType: message.encryptionType ?? 0,
        }
    }

    resendOptions({ last, from, to, sequence = 0, publisher, chain }) {
        if (last) return { last }
        const options = { from: { timestamp: from, sequenceNumber: sequence }, publisherId: publisher, msgChainId: chain }
        return to ? { ...options, to: { timestamp: to, sequenceNumber: sequence } } : options
    }

    async subscribe({ sub: name, stream, partition, resend, groupKeys }) {
        const options = { stream, partition, groupKeys: keysOf(groupKeys) }
        if (resend) options.resend = this.resendOptions(resend)
        const sub = this.client.subscribe(options, this.onMessage(name))
        this.watch(name, sub)
        for (const event of ['resent', 'no_resend']) sub.on(event, () => this.report('resent', { sub: name }))
        await once(sub, 'subscribed')
    }

    async resend({ stream, partition, resend }) {
        const messages = []
        const sub = await this.client.resend(
            { stream, partition, resend: this.resendOptions(resend) },
            (content, message) => messages.push({ content, ...this.describe(message) }),
        )
        await Promise.race([once(sub, 'resent'), once(sub, 'no_resend')])
        return messages
    }

    async unsubscribe({ sub: name }) {
        const sub = this.subs.get(name)
        const gone = once(sub, 'unsubscribed')
        this.client.unsubscribe(sub)
        await gone
    }

    address() {
        return this.client.msgCreationUtil.getPublisherId()
    }

    async unsubscribeUnknown({ stream }) {
        await this.client._requestUnsubscribe({ streamId: stream, streamPartition: 0, setState() {} })
    }

    async publish({ stream, content, timestamp, partitionKey, groupKey }) {
        const key = groupKey && Buffer.from(groupKey, 'hex')
        await this.client.publish(stream, content, timestamp, partitionKey, key)
    }
}

const keysOf = (keys) => keys && Object.fromEntries(
    Object.entries(keys).map(([publisher, key]) => [publisher, Buffer.from(key, 'hex')]),
)

/** 5.x: promises and async iterators; control 2. */
class Promises extends Adapter {
    make(published) {
        this.GroupKey = published.GroupKey
        const client = super.make(published)
        client.onError = () => {}
        return client
    }

    describe(message) {
        return References.prototype.describe.call(this, message)
    }

    resendOptions(resend) {
        return References.prototype.resendOptions.call(this, resend)
    }

    async subscribe({ sub: name, stream, partition, resend }) {
        const options = { streamId: stream, streamPartition: partition ?? 0 }
        if (resend) options.resend = this.resendOptions(resend)
        const sub = await this.client.subscribe(options)
        this.watch(name, sub)
        sub.on('resent', () => this.report('resent', { sub: name }))
        this.follow(name, sub)
    }

    async follow(name, sub) {
        const deliver = this.onMessage(name)
        try {
            for await (const message of sub) deliver(message.getParsedContent(), message)
        } catch (error) {
            this.report('error', { sub: name, error: error.message })
        }
    }

    async resend({ stream, partition, resend }) {
        const messages = []
        const sub = await this.client.resend({ streamId: stream, streamPartition: partition ?? 0, resend: this.resendOptions(resend) })
        for await (const message of sub) {
            messages.push({ content: message.getParsedContent(), ...this.describe(message) })
        }
        return messages
    }

    async unsubscribe({ sub: name }) {
        await this.client.unsubscribe(this.subs.get(name))
    }

    async unsubscribeUnknown({ stream }) {
        const { unsubscribe } = require(`client-${process.argv[2]}/src/subscribe/api`)
        await unsubscribe(this.client, { streamId: stream, streamPartition: 0 })
    }

    async publish({ stream, content, timestamp, partitionKey, groupKey }) {
        if (groupKey) {
            const key = new this.GroupKey(`${stream}-${groupKey.slice(0, 8)}`, groupKey)
            await this.client.setNextGroupKey(stream, key)
        }
        await this.client.publish(stream, content, timestamp, partitionKey)
    }
}

const ERAS = { 0: Callbacks, 1: Callbacks, 2: References, 3: References, 4: References, 5: Promises }

module.exports = { of: (version) => ERAS[version.split('.')[0]] }
