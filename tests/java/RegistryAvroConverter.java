import java.io.ByteArrayOutputStream;
import java.math.BigDecimal;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.avro.LogicalTypes;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.connect.data.Decimal;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.storage.Converter;

/**
 * Records of Connect as Avro behind a schema's id: what Confluent's converter does, whose jars no registry of packages
 * serves. The schema is registered as a version of `TOPIC-value`, by the REST API of Confluent's registry.
 */
public final class RegistryAvroConverter implements Converter {
    private static final Pattern ID = Pattern.compile("\"id\"\\s*:\\s*(\\d+)");

    private final HttpClient http = HttpClient.newHttpClient();
    private final Map<Schema, Written> known = new ConcurrentHashMap<>();
    private String registry = "";
    private String suffix = "-value";

    private record Written(int id, org.apache.avro.Schema avro) {}

    @Override
    public void configure(Map<String, ?> settings, boolean isKey) {
        registry = String.valueOf(settings.get("schema.registry.url"));
        suffix = isKey ? "-key" : "-value";
    }

    @Override
    public byte[] fromConnectData(String topic, Schema schema, Object value) {
        if (value == null) {
            return null;
        }
        Written written = known.computeIfAbsent(schema, one -> registered(topic + suffix, one));
        try {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            bytes.write(0);
            bytes.write(ByteBuffer.allocate(4).putInt(written.id()).array());
            BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
            new GenericDatumWriter<Object>(written.avro()).write(avroValue(schema, written.avro(), value), encoder);
            encoder.flush();
            return bytes.toByteArray();
        } catch (java.io.IOException error) {
            throw new DataException(error);
        }
    }

    @Override
    public SchemaAndValue toConnectData(String topic, byte[] value) {
        throw new DataException("this converter only writes");
    }

    private Written registered(String subject, Schema schema) {
        org.apache.avro.Schema avro = avroSchema(schema, new HashMap<>());
        String text = avro.toString().replace("\\", "\\\\").replace("\"", "\\\"");
        HttpRequest request = HttpRequest.newBuilder(URI.create(registry + "/subjects/" + subject + "/versions"))
            .header("Content-Type", "application/vnd.schemaregistry.v1+json")
            .POST(HttpRequest.BodyPublishers.ofString("{\"schema\": \"" + text + "\"}"))
            .build();
        try {
            HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
            Matcher id = ID.matcher(answer.body());
            if (answer.statusCode() != 200 || !id.find()) {
                throw new org.apache.kafka.connect.errors.RetriableException(subject + ": " + answer.body());
            }
            return new Written(Integer.parseInt(id.group(1)), avro);
        } catch (java.io.IOException | InterruptedException error) {
            throw new org.apache.kafka.connect.errors.RetriableException(error);
        }
    }

    private static org.apache.avro.Schema avroSchema(Schema schema, Map<String, org.apache.avro.Schema> records) {
        org.apache.avro.Schema made = required(schema, records);
        if (!schema.isOptional()) {
            return made;
        }
        return org.apache.avro.Schema.createUnion(org.apache.avro.Schema.create(org.apache.avro.Schema.Type.NULL), made);
    }

    private static org.apache.avro.Schema required(Schema schema, Map<String, org.apache.avro.Schema> records) {
        if (Decimal.LOGICAL_NAME.equals(schema.name())) {
            int precision = Integer.parseInt(schema.parameters().getOrDefault("connect.decimal.precision", "38"));
            int scale = Integer.parseInt(schema.parameters().get(Decimal.SCALE_FIELD));
            org.apache.avro.Schema bytes = org.apache.avro.Schema.create(org.apache.avro.Schema.Type.BYTES);
            return LogicalTypes.decimal(precision, scale).addToSchema(bytes);
        }
        return switch (schema.type()) {
            case INT8, INT16, INT32 -> org.apache.avro.Schema.create(org.apache.avro.Schema.Type.INT);
            case INT64 -> org.apache.avro.Schema.create(org.apache.avro.Schema.Type.LONG);
            case FLOAT32 -> org.apache.avro.Schema.create(org.apache.avro.Schema.Type.FLOAT);
            case FLOAT64 -> org.apache.avro.Schema.create(org.apache.avro.Schema.Type.DOUBLE);
            case BOOLEAN -> org.apache.avro.Schema.create(org.apache.avro.Schema.Type.BOOLEAN);
            case STRING -> org.apache.avro.Schema.create(org.apache.avro.Schema.Type.STRING);
            case BYTES -> org.apache.avro.Schema.create(org.apache.avro.Schema.Type.BYTES);
            case ARRAY -> org.apache.avro.Schema.createArray(avroSchema(schema.valueSchema(), records));
            case MAP -> org.apache.avro.Schema.createMap(avroSchema(schema.valueSchema(), records));
            case STRUCT -> record(schema, records);
        };
    }

    private static org.apache.avro.Schema record(Schema schema, Map<String, org.apache.avro.Schema> records) {
        String name = schema.name() == null ? "Record" + records.size() : schema.name();
        org.apache.avro.Schema made = records.get(name);
        if (made == null) {
            made = org.apache.avro.Schema.createRecord(name, null, null, false);
            records.put(name, made);
            List<org.apache.avro.Schema.Field> fields = new ArrayList<>();
            for (Field field : schema.fields()) {
                Object standard = field.schema().isOptional() ? org.apache.avro.Schema.Field.NULL_DEFAULT_VALUE : null;
                fields.add(new org.apache.avro.Schema.Field(field.name(), avroSchema(field.schema(), records), null, standard));
            }
            made.setFields(fields);
        }
        return made;
    }

    private static Object avroValue(Schema schema, org.apache.avro.Schema avro, Object value) {
        if (value == null) {
            return null;
        }
        org.apache.avro.Schema plain = avro.isUnion() ? avro.getTypes().get(1) : avro;
        if (value instanceof BigDecimal number) {
            return ByteBuffer.wrap(number.unscaledValue().toByteArray());
        }
        if (value instanceof byte[] bytes) {
            return ByteBuffer.wrap(bytes);
        }
        if (value instanceof Byte || value instanceof Short) {
            return ((Number) value).intValue();
        }
        if (value instanceof Struct struct) {
            GenericData.Record made = new GenericData.Record(plain);
            for (Field field : schema.fields()) {
                made.put(field.name(), avroValue(field.schema(), plain.getField(field.name()).schema(), struct.get(field)));
            }
            return made;
        }
        if (value instanceof List<?> items) {
            List<Object> made = new ArrayList<>();
            for (Object item : items) {
                made.add(avroValue(schema.valueSchema(), plain.getElementType(), item));
            }
            return made;
        }
        if (value instanceof Map<?, ?> entries) {
            Map<Object, Object> made = new HashMap<>();
            for (Map.Entry<?, ?> entry : entries.entrySet()) {
                made.put(entry.getKey(), avroValue(schema.valueSchema(), plain.getValueType(), entry.getValue()));
            }
            return made;
        }
        return value;
    }
}
