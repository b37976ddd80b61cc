import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What every generation of Kafka's clients can do: java Clients.java SERVERS TOPIC GROUP COUNT, one line for each fact. */
public class Clients {
    private static final int PARTITIONS = 3;
    private static final long TIMEOUT_MS = 90_000;

    public static void main(String[] args) throws Exception {
        String servers = args[0], topic = args[1], group = args[2];
        int count = Integer.parseInt(args[3]);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) 1))).all().get();
            produce(servers, topic, count);
            consume(servers, topic, group, count);
            Map<TopicPartition, OffsetAndMetadata> stored =
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            stored.forEach((place, at) -> System.out.println("COMMITTED " + place.partition() + " " + at.offset()));
            System.out.println("LISTED " + admin.listTopics().names().get().contains(topic));
        }
    }

    private static void produce(String servers, String topic, int count) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", servers);
        settings.put("enable.idempotence", true);
        settings.put("compression.type", "zstd");
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                ProducerRecord<String, String> record = new ProducerRecord<>(topic, i % 5 == 0 ? null : "key " + i, "value " + i);
                record.headers().add("number", Integer.toString(i).getBytes());
                sent.add(producer.send(record));
            }
            for (int i = 0; i < count; i++) {
                RecordMetadata at = sent.get(i).get();
                System.out.println("SENT " + i + " " + at.partition() + " " + at.offset());
            }
        }
    }

    private static void consume(String servers, String topic, String group, int count) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        long until = System.currentTimeMillis() + TIMEOUT_MS;
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(Collections.singletonList(topic));
            int found = 0;
            while (found < count && System.currentTimeMillis() < until) {
                for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(500))) {
                    Header number = one.headers().lastHeader("number");
                    System.out.println("READ " + new String(number.value()) + " " + one.partition() + " " + one.offset()
                        + " " + (one.key() == null ? "-" : one.key().replace(' ', '_')) + " " + one.value().replace(' ', '_'));
                    found++;
                }
            }
            consumer.commitSync();
        }
    }
}
