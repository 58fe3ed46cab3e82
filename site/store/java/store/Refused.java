package store;

/** A request that cannot be answered as it is: a number that is none, an item that does not exist, a wrong password. */
public final class Refused extends Exception {
    private static final long serialVersionUID = 1;

    public Refused(String why) {
        super(why, null, false, false);
    }
}
