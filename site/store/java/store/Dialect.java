package store;

/** What two databases want said differently. All other statements are the same for both. */
public enum Dialect {
    MARIADB {
        @Override
        String settings(boolean pooled) {
            return "&useServerPrepStmts=" + pooled + "&cachePrepStmts=" + pooled + "&prepStmtCacheSize=200"
                + "&connectTimeout=5000&socketTimeout=60000&tcpKeepAlive=true";
        }

        @Override
        public String joinInOrder() {
            return "straight_join";
        }

        @Override
        public String oneMore(String table, String key, String column) {
            return " on duplicate key update " + column + " = " + column + " + 1";
        }
    },
    POSTGRESQL {
        @Override
        String settings(boolean pooled) {
            return "&prepareThreshold=" + (pooled ? 1 : 0) + "&sslmode=disable&gssEncMode=disable"
                + "&connectTimeout=5&socketTimeout=60&tcpKeepAlive=true";
        }

        @Override
        public String joinInOrder() {
            return "join";
        }

        @Override
        public String oneMore(String table, String key, String column) {
            return " on conflict (" + key + ") do update set " + column + " = " + table + "." + column + " + 1";
        }
    };

    /** The one of an address for JDBC. */
    static Dialect of(String url) {
        return url.startsWith("jdbc:postgresql:") ? POSTGRESQL : MARIADB;
    }

    /**
     * What is added to the address. Statements are prepared at the server where their connection lasts; else that would be one
     * round trip more for each.
     */
    abstract String settings(boolean pooled);

    /** A join of the tables in the order in which they are named, where the planner has to be told. */
    public abstract String joinInOrder();

    /** The end of an insert: a row that is there already has its number raised instead. */
    public abstract String oneMore(String table, String key, String column);

    /** Whether a transaction was the victim of a deadlock, and has changed nothing. */
    static boolean isDeadlock(String state) {
        return "40001".equals(state) || "40P01".equals(state);
    }
}
