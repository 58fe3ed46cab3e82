package store.data;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** A table as a file that LOAD DATA reads: a line a row, columns separated by tabs. No value has a tab or a backslash. */
final class Table implements AutoCloseable {
    private final OutputStream file;
    private final StringBuilder line = new StringBuilder(1024);

    Table(Path directory, String name) throws IOException {
        file = new BufferedOutputStream(Files.newOutputStream(directory.resolve(name + ".tsv")), 1 << 16);
    }

    void row(Object... values) throws IOException {
        line.setLength(0);
        for (int index = 0; index < values.length; index++) {
            if (index > 0) {
                line.append('\t');
            }
            line.append(values[index]);
        }
        file.write(line.append('\n').toString().getBytes(StandardCharsets.ISO_8859_1));
    }

    @Override
    public void close() throws IOException {
        file.close();
    }
}
