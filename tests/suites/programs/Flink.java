import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.KafkaSourceBuilder;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What jobs do with Flink's Kafka source and sink; a line of the output with ## is an outcome and a test. */
public class Flink {
    static final long LIMIT_MS = 120_000;
    static String brokers;
    static Admin admin;

    /** Throws once in this process, at the record that it is told. */
    static class Tried implements MapFunction<String, String> {
        static final AtomicBoolean failed = new AtomicBoolean(true);
        final String fatal;

        Tried(String fatal) {
            this.fatal = fatal;
        }

        @Override
        public String map(String value) {
            if (value.equals(fatal) && !failed.getAndSet(true)) {
                throw new IllegalStateException("this job fails once");
            }
            return "seen " + value;
        }
    }

    static StreamExecutionEnvironment environment() {
        Configuration settings = new Configuration();
        settings.setString("taskmanager.memory.network.max", "64mb");
        settings.setString("taskmanager.memory.managed.size", "64mb");
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "2");
        settings.setString("restart-strategy.fixed-delay.delay", "100ms");
        return StreamExecutionEnvironment.createLocalEnvironment(2, settings).enableCheckpointing(300);
    }

    static KafkaSourceBuilder<String> source(String topic) {
        return KafkaSource.<String>builder()
            .setBootstrapServers(brokers)
            .setTopics(topic)
            .setGroupId(topic)
            .setProperty("partition.discovery.interval.ms", "500")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new SimpleStringSchema());
    }

    static KafkaSink<String> sink(String topic, DeliveryGuarantee guarantee) {
        return KafkaSink.<String>builder()
            .setBootstrapServers(brokers)
            .setDeliveryGuarantee(guarantee)
            .setTransactionalIdPrefix(topic)
            .setProperty("transaction.timeout.ms", "60000")
            .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                .setTopic(topic).setValueSerializationSchema(new SimpleStringSchema()).build())
            .build();
    }

    static JobClient copying(KafkaSource<String> from, Tried step, KafkaSink<String> to) throws Exception {
        StreamExecutionEnvironment environment = environment();
        environment.fromSource(from, WatermarkStrategy.noWatermarks(), "in").map(step).sinkTo(to);
        return environment.executeAsync();
    }

    static void wait(JobClient job) throws Exception {
        job.getJobExecutionResult().get(LIMIT_MS, java.util.concurrent.TimeUnit.MILLISECONDS);
    }

    static String fresh(String name, int partitions) throws Exception {
        String topic = name + "-" + System.nanoTime();
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        return topic;
    }

    static List<String> numbers(String prefix, int from, int to) {
        return IntStream.range(from, to).mapToObj(number -> prefix + number).sorted().toList();
    }

    static void send(String topic, int from, int to, Integer partition) {
        Map<String, Object> settings = Map.of("bootstrap.servers", brokers);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            numbers("", from, to).forEach(value -> producer.send(new ProducerRecord<>(topic, partition, value, value)));
        }
    }

    static Map<TopicPartition, Long> ends(KafkaConsumer<?, ?> consumer, String topic) {
        return consumer.endOffsets(consumer.partitionsFor(topic).stream()
            .map(one -> new TopicPartition(topic, one.partition())).toList());
    }

    static List<String> stored(String topic) {
        Map<String, Object> settings = Map.of("bootstrap.servers", brokers, "auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            Map<TopicPartition, Long> ends = ends(consumer, topic);
            consumer.assign(ends.keySet());
            List<String> found = new ArrayList<>();
            while (ends.entrySet().stream().anyMatch(one -> consumer.position(one.getKey()) < one.getValue())) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> found.add(record.value()));
            }
            return found.stream().sorted().toList();
        }
    }

    static Map<TopicPartition, Long> committed(String group) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> found =
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        return found.entrySet().stream().collect(Collectors.toMap(Map.Entry::getKey, one -> one.getValue().offset()));
    }

    static void equal(Object found, Object wanted) {
        if (!found.equals(wanted)) {
            throw new AssertionError(found + ", and not " + wanted);
        }
    }

    static void until(Callable<Boolean> done) throws Exception {
        for (long end = System.currentTimeMillis() + LIMIT_MS; !done.call(); Thread.sleep(100)) {
            if (System.currentTimeMillis() > end) {
                throw new AssertionError("it did not come to pass");
            }
        }
    }

    static void aBoundedTopicIsReadMappedAndWritten() throws Exception {
        String from = fresh("bounded", 3), to = fresh("mapped", 2);
        send(from, 0, 1000, null);
        wait(copying(source(from).setBounded(OffsetsInitializer.latest()).build(), new Tried(""),
            sink(to, DeliveryGuarantee.AT_LEAST_ONCE)));
        equal(stored(to), numbers("seen ", 0, 1000));
    }

    static void positionsAreCommittedAndAnotherJobGoesOnThere() throws Exception {
        String from = fresh("committed", 2), to = fresh("first", 1), second = fresh("second", 1);
        send(from, 0, 100, null);
        JobClient job = copying(source(from).build(), new Tried(""), sink(to, DeliveryGuarantee.AT_LEAST_ONCE));
        Map<String, Object> settings = Map.of("bootstrap.servers", brokers);
        Map<TopicPartition, Long> ends;
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            ends = ends(consumer, from);
        }
        until(() -> committed(from).equals(ends));
        job.cancel().get();
        send(from, 100, 150, null);
        KafkaSourceBuilder<String> rest = source(from).setStartingOffsets(OffsetsInitializer.committedOffsets());
        wait(copying(rest.setBounded(OffsetsInitializer.latest()).build(), new Tried(""),
            sink(second, DeliveryGuarantee.AT_LEAST_ONCE)));
        equal(stored(to), numbers("seen ", 0, 100));
        equal(stored(second), numbers("seen ", 100, 150));
    }

    static void aJobThatFailsLosesNothing() throws Exception {
        String from = fresh("failing", 2), to = fresh("survived", 2);
        send(from, 0, 500, null);
        JobClient job = copying(source(from).build(), new Tried("777"), sink(to, DeliveryGuarantee.AT_LEAST_ONCE));
        until(() -> stored(to).size() >= 500);
        Tried.failed.set(false);
        send(from, 500, 1000, null);
        until(() -> Tried.failed.get() && stored(to).stream().distinct().count() >= 1000);
        job.cancel().get();
        equal(stored(to).stream().distinct().toList(), numbers("seen ", 0, 1000));
    }

    static void newPartitionsAreFound() throws Exception {
        String from = fresh("grown", 1), to = fresh("found", 1);
        send(from, 0, 10, null);
        JobClient job = copying(source(from).build(), new Tried(""), sink(to, DeliveryGuarantee.AT_LEAST_ONCE));
        until(() -> stored(to).size() == 10);
        admin.createPartitions(Map.of(from, NewPartitions.increaseTo(2))).all().get();
        send(from, 10, 20, 1);
        until(() -> stored(to).size() >= 20);
        job.cancel().get();
        equal(stored(to), numbers("seen ", 0, 20));
    }

    static void recordsFromATimeOnAreRead() throws Exception {
        String from = fresh("timed", 1), to = fresh("later", 1);
        send(from, 0, 10, null);
        long now = System.currentTimeMillis() + 2;
        until(() -> System.currentTimeMillis() > now);
        send(from, 10, 20, null);
        KafkaSourceBuilder<String> rest = source(from).setStartingOffsets(OffsetsInitializer.timestamp(now));
        wait(copying(rest.setBounded(OffsetsInitializer.latest()).build(), new Tried(""),
            sink(to, DeliveryGuarantee.AT_LEAST_ONCE)));
        equal(stored(to), numbers("seen ", 10, 20));
    }

    static void recordsAreWrittenInTransactions() throws Exception {
        String from = fresh("transactions", 1), to = fresh("exactly", 1);
        send(from, 0, 10, null);
        wait(copying(source(from).setBounded(OffsetsInitializer.latest()).build(), new Tried(""),
            sink(to, DeliveryGuarantee.EXACTLY_ONCE)));
        equal(stored(to), numbers("seen ", 0, 10));
    }

    interface Test {
        void run() throws Exception;
    }

    static void play(String name, Test test) {
        try {
            test.run();
            System.out.println("##pass " + name);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.out.println("##fail " + name);
        }
    }

    public static void main(String[] arguments) {
        brokers = arguments[0];
        admin = Admin.create(Map.of("bootstrap.servers", brokers));
        play("a bounded topic is read, mapped and written", Flink::aBoundedTopicIsReadMappedAndWritten);
        play("positions are committed, and another job goes on there",
            Flink::positionsAreCommittedAndAnotherJobGoesOnThere);
        play("a job that fails loses nothing", Flink::aJobThatFailsLosesNothing);
        play("new partitions are found", Flink::newPartitionsAreFound);
        play("records from a time on are read", Flink::recordsFromATimeOnAreRead);
        play("records are written in transactions", Flink::recordsAreWrittenInTransactions);
        System.exit(0);
    }
}
