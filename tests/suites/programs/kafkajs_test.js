// What programs do with kafkajs, against $SUITE_BROKER; each line of the output is an outcome and a test.
"use strict"

const assert = require("node:assert")
const { Kafka, logLevel } = require(process.env.SUITE_MODULE)

const kafka = new Kafka({ clientId: "suite", brokers: [process.env.SUITE_BROKER], logLevel: logLevel.ERROR })
const admin = kafka.admin()
const own = `${Date.now()}-${process.pid}`

async function fresh(name, numPartitions = 1) {
  const topic = `${name}-${own}`
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions, replicationFactor: 1 }] })
  return topic
}

async function sent(topic, messages, settings = {}) {
  const producer = kafka.producer(settings)
  await producer.connect()
  try {
    return await producer.send({ topic, acks: -1, messages })
  } finally {
    await producer.disconnect()
  }
}

// The first messages that a member of a group gets.
async function read(topic, groupId, count) {
  const consumer = kafka.consumer({ groupId })
  await consumer.connect()
  const found = []
  try {
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error))
      consumer.run({
        eachMessage: async ({ partition, message }) => {
          found.push({ partition, ...message })
          if (found.length === count) resolve()
        },
      }).catch(reject)
    })
    await consumer.commitOffsets(
      found.map(({ partition, offset }) => ({ topic, partition, offset: String(Number(offset) + 1) })),
    )
  } finally {
    await consumer.disconnect()
  }
  return found
}

const tests = {
  async "keys, values and headers come back"() {
    const topic = await fresh("back")
    await sent(topic, [{ key: "k", value: "v", headers: { a: "1", b: ["2", "3"] } }, { key: null, value: null }])
    const [first, second] = await read(topic, `back-${own}`, 2)
    assert.deepStrictEqual([first.key.toString(), first.value.toString(), first.headers.a.toString()], ["k", "v", "1"])
    assert.deepStrictEqual(first.headers.b.map(String), ["2", "3"])
    assert.deepStrictEqual([second.key, second.value], [null, null])
  },
  async "an idempotent producer counts on"() {
    const topic = await fresh("idempotent")
    const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
    await producer.connect()
    for (let i = 0; i < 20; i += 1) await producer.send({ topic, messages: [{ value: String(i) }] })
    await producer.disconnect()
    const found = await read(topic, `idempotent-${own}`, 20)
    assert.deepStrictEqual(found.map(({ value }) => Number(value)), [...Array(20).keys()])
  },
  async "a group goes on where it committed"() {
    const [topic, group] = [await fresh("group"), `group-${own}`]
    await sent(topic, [{ value: "1" }, { value: "2" }])
    await read(topic, group, 2)
    await sent(topic, [{ value: "3" }])
    assert.deepStrictEqual((await read(topic, group, 1)).map(({ value }) => value.toString()), ["3"])
    const [{ partitions }] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
    assert.deepStrictEqual(partitions.map(({ offset }) => offset), ["3"])
  },
  async "groups are listed, described and deleted"() {
    const [topic, groupId] = [await fresh("admin"), `admin-${own}`]
    await sent(topic, [{ value: "1" }])
    await read(topic, groupId, 1)
    assert((await admin.listGroups()).groups.some((group) => group.groupId === groupId))
    assert.strictEqual((await admin.describeGroups([groupId])).groups[0].state, "Empty")
    await admin.deleteGroups([groupId])
    assert(!(await admin.listGroups()).groups.some((group) => group.groupId === groupId))
  },
  async "offsets of topics are told, also by time"() {
    const topic = await fresh("offsets")
    await sent(topic, [{ value: "1" }, { value: "2" }])
    assert.deepStrictEqual(await admin.fetchTopicOffsets(topic), [{ partition: 0, offset: "2", high: "2", low: "0" }])
    assert.deepStrictEqual(await admin.fetchTopicOffsetsByTimestamp(topic, 1), [{ partition: 0, offset: "0" }])
  },
  async "records before an offset are deleted"() {
    const topic = await fresh("records")
    await sent(topic, [{ value: "1" }, { value: "2" }, { value: "3" }])
    // it asks nobody for the partition's leader itself
    await admin.fetchTopicOffsets(topic)
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "2" }] })
    assert.strictEqual((await admin.fetchTopicOffsets(topic))[0].low, "2")
  },
  async "partitions are added, settings changed and told"() {
    const topic = await fresh("settings", 2)
    await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
    assert.strictEqual((await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length, 3)
    const resource = { type: 2, name: topic }
    const configEntries = [{ name: "retention.ms", value: "7200000" }]
    await admin.alterConfigs({ resources: [{ ...resource, configEntries }] })
    const { resources } = await admin.describeConfigs({ resources: [{ ...resource, configNames: ["retention.ms"] }] })
    assert.strictEqual(resources[0].configEntries[0].configValue, "7200000")
  },
  async "a transaction is begun"() {
    const settings = { idempotent: true, maxInFlightRequests: 1, transactionalId: own }
    const producer = kafka.producer({ ...settings, retry: { retries: 1 } })
    await producer.connect()
    try {
      await producer.transaction()
    } finally {
      await producer.disconnect()
    }
  },
  async "rules are made"() {
    const acl = { resourceType: 2, resourceName: own, resourcePatternType: 3, principal: "User:a", host: "*" }
    await admin.createAcls({ acl: [{ ...acl, operation: 3, permissionType: 3 }] })
  },
}

async function main() {
  await admin.connect()
  for (const [name, test] of Object.entries(tests)) {
    const outcome = await test().then(() => "pass", (error) => (console.error(name, error), "fail"))
    console.log(`##${outcome} ${name}`)
  }
  await admin.disconnect()
}

main().then(() => process.exit(0))
