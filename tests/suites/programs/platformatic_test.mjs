// What programs do with @platformatic/kafka, against $SUITE_BROKER; each line of the output is an outcome and a test.
import assert from "node:assert"
import { createRequire } from "node:module"

const {
  Admin, Consumer, ConfigResourceTypes, IncrementalAlterConfigOperationTypes, Producer, stringDeserializers,
  stringSerializers,
} = createRequire(`${process.env.SUITE_MODULE}/`)("@platformatic/kafka")

const base = { clientId: "suite", bootstrapBrokers: [process.env.SUITE_BROKER], retries: 10 }
const own = `${Date.now()}-${process.pid}`
const admin = new Admin(base)
const numbers = (count) => [...Array(count).keys()].map(String)
const numerically = (values) => values.toSorted((a, b) => a - b)

async function fresh(name, partitions = 1) {
  const topic = `${name}-${own}`
  await admin.createTopics({ topics: [topic], partitions, replicas: 1 })
  return topic
}

async function sent(topic, messages, settings = {}) {
  const producer = new Producer({ ...base, serializers: stringSerializers, acks: -1, ...settings })
  try {
    return await producer.send({ messages: messages.map((message) => ({ topic, ...message })) })
  } finally {
    await producer.close()
  }
}

const times = { sessionTimeout: 10_000, heartbeatInterval: 500 }
const member = (groupId, settings = {}) =>
  new Consumer({ ...base, ...times, groupId, deserializers: stringDeserializers, ...settings })

const going = { mode: "committed", fallbackMode: "earliest" }

// The first messages that a member of a group gets, committed one by one.
async function read(topic, groupId, count, settings = {}) {
  const consumer = member(groupId, settings)
  const found = []
  try {
    const stream = await consumer.consume({ ...going, topics: [topic], autocommit: false })
    for await (const message of stream) {
      found.push(message)
      await message.commit()
      if (found.length === count) break
    }
  } finally {
    await consumer.close(true)
  }
  return found
}

const values = (messages) => messages.map(({ value }) => value)

const tests = {
  async "keys, values and headers come back"() {
    const topic = await fresh("back")
    await sent(topic, [{ key: "k", value: "v", headers: { a: "1", b: "2" }, timestamp: 1_700_000_000_123n }])
    const [found] = await read(topic, `back-${own}`, 1)
    assert.deepStrictEqual([found.key, found.value, found.timestamp], ["k", "v", 1_700_000_000_123n])
    assert.deepStrictEqual(Object.fromEntries(found.headers), { a: "1", b: "2" })
  },
  async "an idempotent producer counts on"() {
    const topic = await fresh("idempotent")
    const producer = new Producer({ ...base, serializers: stringSerializers, idempotent: true })
    const offsets = []
    for (const value of numbers(20)) {
      offsets.push((await producer.send({ messages: [{ topic, value }] })).offsets[0].offset)
    }
    await producer.close()
    assert.deepStrictEqual(offsets, numbers(20).map(BigInt))
    assert.deepStrictEqual(values(await read(topic, `idempotent-${own}`, 20)), numbers(20))
  },
  async "every compression is taken"() {
    const topic = await fresh("compressed")
    for (const compression of ["none", "gzip", "lz4", "zstd"]) {
      await sent(topic, numbers(30).map((number) => ({ value: `${compression} ${number}` })), { compression })
    }
    const wanted = ["none", "gzip", "lz4", "zstd"].flatMap((one) => numbers(30).map((number) => `${one} ${number}`))
    assert.deepStrictEqual(values(await read(topic, `compressed-${own}`, 120)), wanted)
  },
  async "a group goes on where it committed"() {
    const [topic, group] = [await fresh("group", 2), `group-${own}`]
    await sent(topic, numbers(10).map((value) => ({ key: value, value })))
    assert.deepStrictEqual(numerically(values(await read(topic, group, 10))), numbers(10))
    await sent(topic, [{ key: "a", value: "10" }])
    assert.deepStrictEqual(values(await read(topic, group, 1)), ["10"])
    const [{ topics }] = await admin.listConsumerGroupOffsets({ groups: [group] })
    const committed = topics[0].partitions.map(({ committedOffset }) => Number(committedOffset))
    assert.strictEqual(committed.reduce((sum, offset) => sum + offset), 11)
  },
  async "two members share the work"() {
    const [topic, group] = [await fresh("shared", 4), `shared-${own}`]
    const found = [[], []]
    const members = found.map(() => member(group))
    const shares = () => members.map(({ assignments }) => assignments?.flatMap(({ partitions }) => partitions).length)
    const consume = (one, index) =>
      one.consume({ ...going, topics: [topic], autocommit: true })
        .then((stream) => stream.on("data", ({ value }) => found[index].push(value)))
    const streams = await Promise.all(members.map(consume))
    while (!shares().every((share) => share === 2)) await new Promise((resolve) => setTimeout(resolve, 50))
    await sent(topic, numbers(100).map((value) => ({ key: value, value })))
    while (found.flat().length < 100) await new Promise((resolve) => setTimeout(resolve, 50))
    assert.deepStrictEqual(numerically(found.flat()), numbers(100))
    assert(found.every((one) => one.length > 0))
    for (const stream of streams) await stream.close()
    for (const one of members) await one.close(true)
  },
  async "a static member comes back"() {
    const [topic, group] = [await fresh("static"), `static-${own}`]
    await sent(topic, [{ value: "1" }, { value: "2" }])
    assert.deepStrictEqual(values(await read(topic, group, 1, { groupInstanceId: "one" })), ["1"])
    assert.deepStrictEqual(values(await read(topic, group, 1, { groupInstanceId: "one" })), ["2"])
  },
  async "groups are listed, described, changed and deleted"() {
    const [topic, group] = [await fresh("admin"), `admin-${own}`]
    await sent(topic, numbers(3).map((value) => ({ value })))
    await read(topic, group, 3)
    assert.strictEqual((await admin.listGroups({ types: ["classic"] })).get(group).state, "Empty")
    assert.strictEqual((await admin.describeGroups({ groups: [group] })).get(group).protocolType, "consumer")
    const [coordinator] = await admin.findCoordinator({ keyType: 0, keys: [group] })
    assert.strictEqual(`localhost:${coordinator.port}`, process.env.SUITE_BROKER)
    const at = [{ name: topic, partitionOffsets: [{ partition: 0, offset: 1n }] }]
    await admin.alterConsumerGroupOffsets({ groupId: group, topics: at })
    assert.deepStrictEqual(values(await read(topic, group, 2)), ["1", "2"])
    await admin.deleteConsumerGroupOffsets({ groupId: group, topics: [{ name: topic, partitionIndexes: [0] }] })
    assert.deepStrictEqual(values(await read(topic, group, 3)), ["0", "1", "2"])
    await admin.deleteGroups({ groups: [group] })
    assert(!(await admin.listGroups()).has(group))
  },
  async "topics are made, grown, set, emptied and deleted"() {
    const [topic, resource] = [await fresh("topic", 2), { resourceType: ConfigResourceTypes.TOPIC }]
    assert((await admin.listTopics()).includes(topic))
    const { controllerId } = await admin.metadata({ topics: [topic] })
    const assignments = [{ brokerIds: [controllerId] }]
    await admin.createPartitions({ topics: [{ name: topic, count: 3, assignments }] })
    const grown = await admin.metadata({ topics: [topic], forceUpdate: true })
    assert.strictEqual(grown.topics.get(topic).partitionsCount, 3)
    const { SET } = IncrementalAlterConfigOperationTypes
    const configs = [{ name: "retention.ms", configOperation: SET, value: "7200000" }]
    await admin.incrementalAlterConfigs({ resources: [{ ...resource, resourceName: topic, configs }] })
    const asked = { ...resource, resourceName: topic, configurationKeys: ["retention.ms"] }
    const [shown] = await admin.describeConfigs({ resources: [asked] })
    assert.deepStrictEqual(shown.configs.map(({ name, value }) => [name, value]), [["retention.ms", "7200000"]])
    await sent(topic, numbers(5).map((value) => ({ partition: 0, value })))
    const low = await admin.deleteRecords({ topics: [{ name: topic, partitions: [{ partition: 0, offset: 2n }] }] })
    assert.strictEqual(low[0].partitions[0].lowWatermark, 2n)
    for (const [timestamp, wanted] of [[-2n, 2n], [-1n, 5n], [1n, 2n]]) {
      const partitions = [{ partitionIndex: 0, timestamp }]
      const [listed] = await admin.listOffsets({ topics: [{ name: topic, partitions }] })
      assert.strictEqual(listed.partitions[0].offset, wanted)
    }
    const folders = await admin.describeLogDirs({ topics: [{ name: topic, partitions: [0, 1, 2] }] })
    const ofTopics = folders.flatMap(({ results }) => results).flatMap(({ topics }) => topics)
    assert(ofTopics.flatMap(({ partitions }) => partitions).some(({ partitionSize }) => partitionSize > 0n))
    await admin.deleteTopics({ topics: [topic] })
    assert(!(await admin.listTopics()).includes(topic))
  },
  async "a transaction is begun"() {
    const producer = new Producer({ ...base, retries: 0, idempotent: true, transactionalId: own })
    try {
      await producer.beginTransaction()
    } finally {
      await producer.close(true)
    }
  },
}

const limited = (promise) => {
  const { promise: late, reject } = Promise.withResolvers()
  const timer = setTimeout(() => reject(new Error("it did not end within a minute")), 60_000)
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

for (const [name, test] of Object.entries(tests)) {
  const outcome = await limited(test()).then(() => "pass", (error) => (console.error(name, error), "fail"))
  console.log(`##${outcome} ${name}`)
}
process.exit(0)
