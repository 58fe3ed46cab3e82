package store;

import java.util.HashMap;
import java.util.Map;

/** What the command line says: words of the form {@code --key value}. */
public final class Config {
    private final Map<String, String> values = new HashMap<>();

    public Config(String[] words) {
        for (int index = 0; index < words.length; index += 2) {
            if (!words[index].startsWith("--") || index + 1 == words.length) {
                throw new IllegalArgumentException("expected --key value, found " + words[index]);
            }
            values.put(words[index].substring(2), words[index + 1]);
        }
    }

    public String text(String key, String otherwise) {
        return values.getOrDefault(key, otherwise);
    }

    public int number(String key, int otherwise) {
        String value = values.get(key);
        return value == null ? otherwise : Integer.parseInt(value);
    }

    public boolean on(String key, boolean otherwise) {
        String value = values.get(key);
        return value == null ? otherwise : value.equals("on");
    }
}
