package example.palisade.sample;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.DriverManager;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** The examples of docs/use/java.md stand among those that run, and its counts are right. */
public final class PageTest {
    private static String squeezed(String text) {
        return text.replaceAll("\\s+", " ").strip();
    }

    @Test
    public void itsExamplesAreThoseThatRun() throws Exception {
        String page = Files.readString(Path.of("../../../docs/use/java.md"));
        String examples = squeezed(Files.readString(Path.of("src/test/java/example/palisade/page/Examples.java")));
        Matcher blocks = Pattern.compile("(?:^<!-- (\\w+) -->\n)?^```java( norun)?\n(.*?)^```", Pattern.MULTILINE | Pattern.DOTALL)
                .matcher(page);
        int found = 0;
        while (blocks.find()) {
            found++;
            if (blocks.group(1) != null) {
                long lines = blocks.group(3).lines().filter(line -> !line.isBlank()).count();
                assertTrue(lines < 10 && page.contains(blocks.group(1) + " " + lines), blocks.group(1) + " has " + lines);
            }
            for (String part : blocks.group(3).split("\n\n|(?<=;)\n(?=import )")) {
                assertTrue(blocks.group(2) != null || examples.contains(squeezed(part)), "no example is:\n" + part);
            }
        }
        assertEquals(6, found);
    }

    @Test
    public void theExamplesWrite() throws Exception {
        try (Server server = new Server()) {
            String url = Databases.fresh();
            ProcessBuilder examples = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-cp",
                    System.getProperty("java.class.path"), "example.palisade.page.Examples", url);
            examples.environment().put("PALISADE_URL", server.url);
            Process ran = examples.redirectErrorStream(true).start();
            String said = new String(ran.getInputStream().readAllBytes());
            assertEquals(0, ran.waitFor(), said);
            try (var connection = DriverManager.getConnection(url);
                    var rows = connection.createStatement().executeQuery("SELECT total FROM orders")) {
                rows.next();
                assertEquals(4, rows.getInt(1), said);
            }
        }
    }
}
