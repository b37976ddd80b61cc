import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Sends values in one batch, and says what became of each. */
public class Refused {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("linger.ms", "500");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            List<Future<?>> sent = new ArrayList<>();
            for (int at = 2; at < arguments.length; at++) {
                sent.add(producer.send(new ProducerRecord<>(arguments[1], arguments[at])));
            }
            for (Future<?> one : sent) {
                try {
                    one.get();
                    System.out.println("stored");
                } catch (ExecutionException failure) {
                    System.out.println(failure.getCause().getClass().getSimpleName() + ": " + failure.getCause().getMessage());
                }
            }
        }
    }
}
