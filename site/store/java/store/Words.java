package store;

/** Names that generator, store and emulator agree on. */
public final class Words {
    /** The twenty-four subjects */
    public static final String[] SUBJECTS = {
        "ARTS", "BIOGRAPHIES", "BUSINESS", "CHILDREN", "COMPUTERS", "COOKING", "HEALTH", "HISTORY", "HOME", "HUMOR",
        "LITERATURE", "MYSTERY", "NON-FICTION", "PARENTING", "POLITICS", "REFERENCE", "RELIGION", "ROMANCE", "SELF-HELP",
        "SCIENCE-NATURE", "SCIENCE-FICTION", "SPORTS", "YOUTH", "TRAVEL",
    };

    public static final String[] BACKINGS = {"HARDBACK", "PAPERBACK", "USED", "AUDIO", "LIMITED-EDITION"};
    public static final String[] CARDS = {"VISA", "MASTERCARD", "DISCOVER", "AMEX", "DINERS"};
    public static final String[] SHIPPING = {"AIR", "UPS", "FEDEX", "SHIP", "COURIER", "MAIL"};
    public static final String[] STATES = {"PROCESSING", "SHIPPED", "PENDING", "DENIED"};

    private static final String[] SYLLABLES = {"BA", "OG", "AL", "RI", "RE", "SE", "AT", "UL", "IN", "NG"};

    private Words() {}

    /** DigSyl: a syllable for each digit, with zeros in front up to so many digits. */
    public static String digSyl(long number, int digits) {
        String text = Long.toString(number);
        StringBuilder word = new StringBuilder(2 * Math.max(text.length(), digits));
        for (int missing = text.length(); missing < digits; missing++) {
            word.append(SYLLABLES[0]);
        }
        for (int index = 0; index < text.length(); index++) {
            word.append(SYLLABLES[text.charAt(index) - '0']);
        }
        return word.toString();
    }
}
