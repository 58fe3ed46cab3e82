package store;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

/**
 * Where connections come from: a pool, or a new one for each interaction ({@code --pool off}), as sites of the simpler sort
 * have it.
 */
public final class Database {
    private final Dialect dialect;
    private final String url;
    private final HikariDataSource pool;
    private final int items;

    public Database(Config config) throws SQLException {
        boolean pooled = config.on("pool", true);
        String address = config.text("database", "jdbc:mariadb://127.0.0.1:3306/store");
        dialect = Dialect.of(address);
        url = address + "?user=" + config.text("user", "root") + dialect.settings(pooled);
        pool = pooled ? makePool(config) : null;
        try (Connection connection = open()) {
            items = number(connection, "select count(*) from item");
        }
        if (items == 0) {
            throw new SQLException("the table of items is empty");
        }
    }

    private HikariDataSource makePool(Config config) {
        HikariConfig settings = new HikariConfig();
        settings.setJdbcUrl(url);
        settings.setMaximumPoolSize(config.number("connections", 24));
        settings.setMinimumIdle(config.number("connections", 24));
        settings.setConnectionTimeout(30_000);
        settings.setInitializationFailTimeout(60_000);
        return new HikariDataSource(settings);
    }

    public Connection open() throws SQLException {
        return pool == null ? DriverManager.getConnection(url) : pool.getConnection();
    }

    public Dialect dialect() {
        return dialect;
    }

    /** How many items there are: that never changes. */
    public int items() {
        return items;
    }

    /** A statement with its parameters. */
    public static PreparedStatement prepare(Connection connection, String text, Object... values) throws SQLException {
        PreparedStatement statement = connection.prepareStatement(text);
        try {
            for (int index = 0; index < values.length; index++) {
                statement.setObject(index + 1, values[index]);
            }
            return statement;
        } catch (SQLException error) {
            statement.close();
            throw error;
        }
    }

    /** Runs a statement that returns nothing. Returns how many rows it changed. */
    public static int run(Connection connection, String text, Object... values) throws SQLException {
        try (PreparedStatement statement = prepare(connection, text, values)) {
            return statement.executeUpdate();
        }
    }

    /** Inserts a row whose number the database makes, and returns that. */
    public static int insert(Connection connection, String text, Object... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(text, PreparedStatement.RETURN_GENERATED_KEYS)) {
            for (int index = 0; index < values.length; index++) {
                statement.setObject(index + 1, values[index]);
            }
            statement.executeUpdate();
            try (ResultSet keys = statement.getGeneratedKeys()) {
                if (!keys.next()) {
                    throw new SQLException("no number for the new row");
                }
                return keys.getInt(1);
            }
        }
    }

    /** The one number that a query returns. */
    public static int number(Connection connection, String text, Object... values) throws SQLException {
        try (PreparedStatement statement = prepare(connection, text, values);
                ResultSet row = statement.executeQuery()) {
            if (!row.next()) {
                throw new SQLException("no row for: " + text);
            }
            return row.getInt(1);
        }
    }

    /** What is done for one interaction. */
    public interface Work<T> {
        T with(Connection connection) throws SQLException, Refused;
    }

    /** Statements that each stand for themselves. */
    public <T> T read(Work<T> work) throws SQLException, Refused {
        try (Connection connection = open()) {
            return work.with(connection);
        }
    }

    /** A transaction. One that was the victim of a deadlock is done again: it has changed nothing. */
    public <T> T change(Work<T> work) throws SQLException, Refused {
        for (int attempt = 1; ; attempt++) {
            try (Connection connection = open()) {
                connection.setAutoCommit(false);
                try {
                    T result = work.with(connection);
                    connection.commit();
                    return result;
                } catch (SQLException | Refused | RuntimeException error) {
                    rollBack(connection);
                    throw error;
                } finally {
                    restore(connection);
                }
            } catch (SQLException error) {
                if (attempt == 5 || !Dialect.isDeadlock(error.getSQLState())) {
                    throw error;
                }
            }
        }
    }

    /** A connection that is gone cannot be rolled back: the database has done that. */
    private static void rollBack(Connection connection) {
        try {
            connection.rollback();
        } catch (SQLException gone) {
            // The first error is the one to tell.
        }
    }

    private static void restore(Connection connection) {
        try {
            connection.setAutoCommit(true);
        } catch (SQLException gone) {
            // The pool tests a connection before it hands it out again.
        }
    }
}
