package store.data;

import java.time.LocalDate;
import java.util.SplittableRandom;

/** Random words, numbers and dates of one row. Each row's follow from the seed, its table and its number, and from nothing else. */
final class Text {
    private static final String LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    /** The day on which the store opens. Fixed, so that data are the same whenever they are made. */
    static final LocalDate TODAY = LocalDate.of(2026, 1, 1);

    private final SplittableRandom random;

    Text(long seed, int table, long row) {
        random = new SplittableRandom(seed * 0x9E3779B97F4A7C15L ^ ((long) table << 48) ^ row);
        // The generator's first numbers of neighbouring rows are alike before it has mixed them once.
        random.nextLong();
    }

    int between(int least, int most) {
        return random.nextInt(least, most + 1);
    }

    /** An a-string of the specification: letters. */
    String letters(int least, int most) {
        int length = between(least, most);
        StringBuilder text = new StringBuilder(length);
        long bits = 0;
        for (int index = 0; index < length; index++) {
            if (index % 8 == 0) {
                bits = random.nextLong();
            }
            text.append(LETTERS.charAt((int) ((bits & 0xff) * LETTERS.length() >> 8)));
            bits >>>= 8;
        }
        return text.toString();
    }

    /** Letters with blanks, as titles and descriptions have them. */
    String sentence(int least, int most) {
        int length = between(least, most);
        StringBuilder text = new StringBuilder(length);
        while (text.length() < length) {
            text.append(letters(2, 9)).append(' ');
        }
        text.setLength(length);
        if (text.charAt(length - 1) == ' ') {
            text.setCharAt(length - 1, 'e');
        }
        return text.toString();
    }

    /** An n-string of the specification: digits. */
    String digits(int least, int most) {
        int length = between(least, most);
        StringBuilder text = new StringBuilder(length);
        for (int index = 0; index < length; index++) {
            text.append((char) ('0' + random.nextInt(10)));
        }
        return text.toString();
    }

    /** An amount of hundredths. */
    String money(int least, int most) {
        return hundredths(between(least, most));
    }

    static String hundredths(long amount) {
        return amount / 100 + (amount % 100 < 10 ? ".0" : ".") + amount % 100;
    }

    LocalDate date(int firstYear, int lastYear) {
        LocalDate first = LocalDate.of(firstYear, 1, 1);
        return first.plusDays(random.nextInt((int) (LocalDate.of(lastYear + 1, 1, 1).toEpochDay() - first.toEpochDay())));
    }

    <T> T oneOf(T[] values) {
        return values[random.nextInt(values.length)];
    }
}
