import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.flink.avro.shaded.org.apache.avro.Schema;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericData;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericRecord;
import org.apache.flink.formats.avro.registry.confluent.ConfluentRegistryAvroDeserializationSchema;
import org.apache.flink.formats.avro.registry.confluent.ConfluentRegistryAvroSerializationSchema;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Values of a typed topic by Flink's serializer for Confluent's registry: java TypedValues SERVERS URL TOPIC COUNT. The
 * second half comes of an older producer and of one whose schema has a field more, in turn.
 */
public final class TypedValues {
    private static final int PARTITIONS = 2;
    private static final long TIMEOUT_MS = 90_000;
    private static final String FIELDS = "{'type':'record','name':'Order','namespace':'shop','fields':["
        + "{'name':'number','type':'int'},"
        + "{'name':'item','type':['null','string'],'default':null},"
        + "{'name':'amount','type':{'type':'bytes','logicalType':'decimal','precision':9,'scale':2}},"
        + "{'name':'at','type':{'type':'long','logicalType':'timestamp-millis'}},"
        + "{'name':'state','type':{'type':'enum','name':'State','symbols':['NEW','PAID']}},"
        + "{'name':'tags','type':{'type':'array','items':'string'}},"
        + "{'name':'place','type':{'type':'record','name':'Place','fields':[{'name':'city','type':'string'}]}}%s]}";
    private static final Schema FIRST = schema("");
    private static final Schema SECOND = schema(",{'name':'note','type':'string','default':'none'}");
    private static final Schema BROKEN = schema(",{'name':'missing','type':'string'}");

    private static Schema schema(String more) {
        return new Schema.Parser().parse(String.format(FIELDS, more).replace('\'', '"'));
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0], url = arguments[1], topic = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        var older = ConfluentRegistryAvroSerializationSchema.forGeneric(topic + "-value", FIRST, url);
        var newer = ConfluentRegistryAvroSerializationSchema.forGeneric(topic + "-value", SECOND, url);
        var broken = ConfluentRegistryAvroSerializationSchema.forGeneric(topic + "-value", BROKEN, url);
        // The first value registers its schema, which the topic then has.
        older.serialize(value(FIRST, 0));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            Map<String, String> typed = Map.of("deltamq.schema.format", "avro", "deltamq.schema.wire", "confluent");
            admin.createTopics(List.of(new NewTopic(topic, PARTITIONS, (short) 1).configs(typed))).all().get();
        }
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers, "compression.type", "zstd"));
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                boolean isOld = isOld(i, count);
                GenericRecord value = value(isOld ? FIRST : SECOND, i);
                byte[] bytes = (isOld ? older : newer).serialize(value);
                sent.add(producer.send(new ProducerRecord<>(topic, ("key " + i).getBytes(), bytes)));
            }
            for (int i = 0; i < count; i++) {
                RecordMetadata at = sent.get(i).get();
                System.out.println("SENT\t" + i + "\t" + at.partition() + "\t" + at.offset());
            }
        }
        try {
            broken.serialize(value(BROKEN, 0));
        } catch (RuntimeException refused) {
            System.out.println("REFUSED\t" + root(refused).getMessage());
        }
        consume(servers, url, topic, count);
    }

    private static boolean isOld(int i, int count) {
        return i < count / 2 || i % 2 == 1;
    }

    private static GenericRecord value(Schema schema, int i) {
        GenericRecord value = new GenericData.Record(schema);
        value.put("number", i);
        value.put("item", i % 3 == 0 ? null : "größe " + i);
        value.put("amount", ByteBuffer.wrap(java.math.BigInteger.valueOf(i * 7L - 500).toByteArray()));
        value.put("at", 1_700_000_000_000L + i);
        value.put("state", new GenericData.EnumSymbol(schema.getField("state").schema(), i % 2 == 0 ? "NEW" : "PAID"));
        value.put("tags", i % 4 == 0 ? List.of() : List.of("a", "tag " + i));
        GenericRecord place = new GenericData.Record(schema.getField("place").schema());
        place.put("city", "city " + i % 10);
        value.put("place", place);
        for (String more : List.of("note", "missing")) {
            if (schema.getField(more) != null) {
                value.put(more, "note " + i);
            }
        }
        return value;
    }

    private static Throwable root(Throwable thrown) {
        return thrown.getCause() == null ? thrown : root(thrown.getCause());
    }

    private static void consume(String servers, String url, String topic, int count) throws Exception {
        var reader = ConfluentRegistryAvroDeserializationSchema.forGeneric(SECOND, url);
        Map<String, Object> settings = Map.of("bootstrap.servers", servers, "enable.auto.commit", false);
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> places = new ArrayList<>();
            for (int partition = 0; partition < PARTITIONS; partition++) {
                places.add(new TopicPartition(topic, partition));
            }
            consumer.assign(places);
            consumer.seekToBeginning(places);
            long end = System.currentTimeMillis() + TIMEOUT_MS;
            for (int read = 0; read < count; ) {
                if (System.currentTimeMillis() > end) {
                    throw new IllegalStateException(read + " of " + count + " were read");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    GenericRecord value = reader.deserialize(record.value());
                    GenericRecord wanted = value(SECOND, (int) value.get("number"));
                    if (isOld((int) value.get("number"), count)) {
                        wanted.put("note", "none");
                    }
                    boolean isWanted = GenericData.get().compare(value, wanted, SECOND) == 0;
                    String place = record.partition() + "\t" + record.offset();
                    System.out.println("READ\t" + value.get("number") + "\t" + place + "\t" + isWanted);
                    read++;
                }
            }
        }
    }
}
