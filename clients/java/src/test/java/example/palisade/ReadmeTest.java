package example.palisade;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** Each Java block of the README stands among the examples that are run. */
public final class ReadmeTest {
    private static String squeezed(String text) {
        return text.replaceAll("\\s+", " ").strip();
    }

    private static String examples() throws IOException {
        return squeezed(Files.readString(Path.of("src/test/java/example/palisade/Examples.java")));
    }

    @Test
    public void theExampleOfTheNoticesIsTheOneThatRuns() throws Exception {
        Matcher block = Pattern.compile("## Java\n.*?^```java\n(.*?)^```", Pattern.MULTILINE | Pattern.DOTALL)
                .matcher(Files.readString(Path.of("../../docs/use/notices.md")));
        assertTrue(block.find() && examples().contains(squeezed(block.group(1))), "no example is that of docs/use/notices.md");
    }

    @Test
    public void itsExamplesAreThoseThatRun() throws Exception {
        String examples = examples();
        Matcher blocks = Pattern.compile("^```java\n(.*?)^```", Pattern.MULTILINE | Pattern.DOTALL)
                .matcher(Files.readString(Path.of("README.md")));
        int found = 0;
        while (blocks.find()) {
            found++;
            assertTrue(examples.contains(squeezed(blocks.group(1))), "no example is:\n" + blocks.group(1));
            assertTrue(found > 1 || blocks.group(1).lines().count() + 2 < 10, "from the jar to a fenced write");
        }
        assertEquals(5, found);
    }
}
