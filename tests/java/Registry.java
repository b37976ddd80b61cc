import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.ParsedSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.SchemaMetadata;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.RestService;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.Config;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaReference;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;

/**
 * What Confluent's client of a schema registry can do: java Registry URL PART [FILE] [SETTING=VALUE ...]. Each line is
 * the name of a call and what it gave, or the status and the code with which it was refused. The client's classes are
 * Confluent's; only their packages are others, those of Flink's jar.
 */
public final class Registry {
    private static final String ID = "{\"name\":\"id\",\"type\":\"int\"}";
    private static final String NOTE = "{\"name\":\"note\",\"type\":[\"null\",\"string\"],\"default\":null}";

    private final String url;
    private final Map<String, String> settings = new HashMap<>();
    private final RestService calls;
    private final CachedSchemaRegistryClient client;

    private Registry(String url, String[] arguments) {
        this.url = url;
        for (String argument : arguments) {
            String[] setting = argument.split("=", 2);
            if (setting.length == 2) {
                settings.put(setting[0], setting[1]);
            }
        }
        calls = new RestService(url);
        client = new CachedSchemaRegistryClient(calls, 100, settings);
    }

    public static void main(String[] arguments) throws Exception {
        Registry registry = new Registry(arguments[0], arguments);
        switch (arguments[1]) {
            case "versions" -> registry.versions();
            case "types" -> registry.types();
            case "compatibility" -> registry.compatibility();
            case "references" -> registry.references();
            case "modes" -> registry.modes();
            case "deletions" -> registry.deletions();
            case "forms" -> registry.forms(Path.of(arguments[2]));
            case "alter" -> registry.alter();
            case "subjects" -> registry.tell("subjects", registry.client::getAllSubjects);
            default -> throw new IllegalArgumentException(arguments[1]);
        }
    }

    /** Another client, which has not seen anything yet. */
    private CachedSchemaRegistryClient other() {
        return new CachedSchemaRegistryClient(url, 100, settings);
    }

    private void tell(String name, Callable<?> call) throws Exception {
        Object told;
        try {
            told = call.call();
        } catch (RestClientException refused) {
            told = "refused " + refused.getStatus() + " " + refused.getErrorCode();
        }
        boolean isUnordered = told instanceof Collection && !(told instanceof List);
        System.out.println(name + "\t" + (isUnordered ? new TreeSet<>((Collection<?>) told) : told));
    }

    private static AvroSchema record(String name, String... fields) {
        return new AvroSchema(
            "{\"type\":\"record\",\"name\":\"" + name + "\",\"fields\":[" + String.join(",", fields) + "]}");
    }

    private static AvroSchema broken(String name) {
        return record(name, ID, "{\"name\":\"note\",\"type\":\"string\"}");
    }

    private static String shown(SchemaMetadata found) {
        return String.join(" ", "" + found.getId(), "" + found.getVersion(), found.getSchemaType(), found.getSchema());
    }

    private static List<String> texts(Collection<ParsedSchema> schemas) {
        List<String> texts = new ArrayList<>();
        schemas.forEach(schema -> texts.add(schema.canonicalString()));
        return texts;
    }

    private void alter() throws Exception {
        tell("registered", () -> client.register("theirs-value", record("Shown", ID, NOTE)));
    }

    private void versions() throws Exception {
        AvroSchema one = record("Shown", ID), two = record("Shown", ID, NOTE);
        int first = client.register("shown-value", one), second = client.register("shown-value", two);
        tell("first", () -> first);
        tell("second", () -> second);
        tell("again", () -> other().register("shown-value", one));
        tell("elsewhere", () -> other().register("also-value", one));
        tell("normalized", () -> other().register("also-value", one, true));
        tell("answer", () -> other().registerWithResponse("shown-value", two, false).getId());
        tell("by id", () -> other().getSchemaById(second).canonicalString());
        tell("by subject and id", () -> other().getSchemaBySubjectAndId("shown-value", first).canonicalString());
        tell("id", () -> other().getId("shown-value", one));
        tell("version", () -> other().getVersion("shown-value", two));
        tell("versions", () -> other().getAllVersions("shown-value"));
        tell("newest", () -> shown(other().getLatestSchemaMetadata("shown-value")));
        tell("oldest", () -> shown(other().getSchemaMetadata("shown-value", 1)));
        tell("by version", () -> other().getByVersion("shown-value", 2, false).getSchema());
        tell("subjects", () -> other().getAllSubjects());
        tell("subjects by prefix", () -> other().getAllSubjectsByPrefix("sho"));
        tell("subjects by id", () -> other().getAllSubjectsById(first));
        tell("versions by id", () -> other().getAllVersionsById(first));
        tell("schemas", () -> texts(other().getSchemas("shown", false, false)));
        tell("newest schemas", () -> texts(other().getSchemas("shown", false, true)));
        tell("types", calls::getSchemaTypes);
        tell("contexts", calls::getAllContexts);
        tell("text by id", () -> calls.getOnlySchemaById(first));
        tell("newest text", () -> calls.getLatestVersionSchemaOnly("shown-value"));
        tell("no id", () -> other().getSchemaById(9_999));
        tell("no subject", () -> other().getAllVersions("nobody"));
        tell("no version", () -> other().getSchemaMetadata("shown-value", 9));
        tell("bad version", () -> other().getSchemaMetadata("shown-value", 0));
        tell("no such schema", () -> other().getId("shown-value", broken("Shown")));
    }

    /** Finds the schemas of a file, a text on each line, that others registered as they are. */
    private void forms(Path file) throws Exception {
        int at = 0;
        for (String text : Files.readAllLines(file)) {
            String subject = "form" + at++;
            AvroSchema schema = new AvroSchema(text);
            tell("found " + subject, () -> client.getId(subject, schema));
            tell("registered " + subject, () -> other().register(subject, schema));
            ParsedSchema read = other().getSchemaById(client.getId(subject, schema));
            tell("read " + subject, () -> other().getId(subject, read));
            tell("versions " + subject, () -> client.getAllVersions(subject));
        }
    }

    /** Types for which the jar has no classes: the client's calls take texts of them. */
    private void types() throws Exception {
        String used = "syntax = \"proto3\"; message Address {}";
        String proto = "syntax = \"proto3\"; message Order { Address a = 1; }";
        tell("JSON used", () -> calls.registerSchema("{\"type\":\"object\"}", "JSON", List.of(), "json-used").getId());
        tell("JSON", () -> typed("JSON", "{\"properties\":{\"a\":{\"$ref\":\"address\"}}}", "address"));
        tell("PROTOBUF used", () -> calls.registerSchema(used, "PROTOBUF", List.of(), "protobuf-used").getId());
        tell("PROTOBUF", () -> typed("PROTOBUF", proto.replace("\"; ", "\"; import \"address\"; "), "address"));
        tell("not found", () -> typed("PROTOBUF", proto, "address"));
        tell("XML", () -> calls.registerSchema("<a/>", "XML", List.of(), "xml-value").getId());
    }

    private String typed(String type, String text, String name) throws Exception {
        String subject = type.toLowerCase() + "-value";
        List<SchemaReference> uses = List.of(new SchemaReference(name, type.toLowerCase() + "-used", 1));
        int id = calls.registerSchema(text, type, uses, subject).getId();
        SchemaMetadata found = new SchemaMetadata(calls.getVersion(subject, 1));
        List<Integer> users = calls.getReferencedBy(type.toLowerCase() + "-used", 1);
        return found.getSchemaType() + " " + found.getReferences().equals(uses) + " " + users.equals(List.of(id));
    }

    private void compatibility() throws Exception {
        AvroSchema one = record("Checked", ID), two = record("Checked", ID, NOTE);
        client.register("checked-value", one);
        tell("fits", () -> client.testCompatibility("checked-value", two));
        tell("does not fit", () -> client.testCompatibility("checked-value", broken("Checked")));
        tell("why", () -> client.testCompatibilityVerbose("checked-value", broken("Checked")));
        tell("refused", () -> client.register("checked-value", broken("Checked")));
        tell("none", () -> client.getCompatibility("checked-value"));
        tell("of all", () -> client.getCompatibility(null));
        tell("set", () -> client.updateCompatibility("checked-value", "NONE"));
        tell("read", () -> client.getCompatibility("checked-value"));
        tell("taken", () -> client.register("checked-value", broken("Checked")) > 0);
        tell("unknown", () -> client.updateCompatibility("checked-value", "SOMEHOW"));
        tell("put", () -> client.updateConfig("checked-value", new Config("FULL")).getCompatibilityLevel());
        tell("got", () -> client.getConfig("checked-value").getCompatibilityLevel());
        client.deleteCompatibility("checked-value");
        tell("none again", () -> client.getConfig("checked-value"));
    }

    private void references() throws Exception {
        SchemaReference uses = new SchemaReference("Address", "dir/address", 1);
        String text = "{\"type\":\"array\",\"items\":\"Address\"}";
        client.register("dir/address", record("Address", ID));
        ParsedSchema using = client.parseSchema("AVRO", text, List.of(uses)).orElseThrow();
        int id = client.register("uses-value", using);
        tell("again", () -> other().getId("uses-value", using) == id);
        tell("by id", () -> other().getSchemaById(id).references());
        tell("whole", () -> ((AvroSchema) other().getSchemaById(id)).rawSchema());
        tell("users", () -> calls.getReferencedBy("dir/address", 1).equals(List.of(id)));
        tell("stays", () -> client.deleteSubject("dir/address"));
        List<SchemaReference> unknown = List.of(new SchemaReference("Address", "dir/address", 2));
        tell("no such", () -> calls.registerSchema(text, "AVRO", unknown, "uses-value").getId());
        tell("without", () -> calls.registerSchema(text, "AVRO", List.of(), "uses-value").getId());
    }

    private void modes() throws Exception {
        client.register("closed-value", record("Closed", ID));
        tell("of all", client::getMode);
        tell("none", () -> client.getMode("closed-value"));
        tell("set", () -> client.setMode("READONLY", "closed-value"));
        tell("read", () -> client.getMode("closed-value"));
        tell("refused", () -> client.register("closed-value", record("Closed", ID, NOTE)));
        tell("stays", () -> client.deleteSubject("closed-value"));
        client.deleteMode("closed-value");
        tell("taken", () -> client.register("closed-value", record("Closed", ID, NOTE)) > 0);
        tell("unknown", () -> client.setMode("SOMEHOW", "closed-value"));
        tell("import", () -> client.setMode("IMPORT", "brought-value"));
        tell("brought", () -> client.register("brought-value", new AvroSchema("\"bytes\""), 7, 100_001));
        tell("versions", () -> client.getAllVersions("brought-value"));
        tell("clash", () -> client.register("brought-value", new AvroSchema("\"double\""), 8, 100_001));
        tell("next", () -> client.register("after-value", new AvroSchema("\"float\"")));
    }

    private void deletions() throws Exception {
        AvroSchema one = record("Gone", ID);
        int id = client.register("gone-value", one);
        client.register("gone-value", record("Gone", ID, NOTE));
        tell("permanent first", () -> client.deleteSchemaVersion("gone-value", "1", true));
        tell("version", () -> client.deleteSchemaVersion("gone-value", "1"));
        tell("again", () -> client.deleteSchemaVersion("gone-value", "1"));
        tell("versions", () -> client.getAllVersions("gone-value"));
        tell("all versions", () -> client.getAllVersions("gone-value", true));
        tell("deleted versions", () -> calls.getDeletedOnlyVersions("gone-value"));
        tell("by id", () -> other().getSchemaById(id).canonicalString());
        tell("subjects of id", () -> other().getAllSubjectsById(id));
        tell("last", () -> client.deleteSubject("gone-value"));
        tell("no subject", () -> calls.deleteSubject(Map.of(), "gone-value"));
        tell("live", () -> client.getAllSubjects().contains("gone-value"));
        tell("all", () -> client.getAllSubjects(true).contains("gone-value"));
        tell("deleted", () -> calls.getDeletedOnlySubjects("gone"));
        tell("anew", () -> other().register("gone-value", one) == id);
        tell("new version", () -> client.getAllVersions("gone-value"));
        tell("subject", () -> client.deleteSubject("gone-value"));
        tell("for good", () -> client.deleteSubject("gone-value", true));
        tell("gone", () -> other().getSchemaById(id));
        tell("other id", () -> other().register("gone-value", one) > id);
    }
}
