package store.data;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.SplittableRandom;
import java.util.zip.CRC32;
import java.util.zip.Deflater;
import java.util.zip.DeflaterOutputStream;

/**
 * Draws the pictures: a cover of coloured bands for each item, as PNG of exactly the size that the specification has for it. What a
 * cover's few colours do not fill is filled by a private chunk of noise, which viewers pass over.
 */
final class Images {
    /** Buttons and the logo. */
    private static final String[] BUTTONS = {"logo", "home", "cart", "search", "order"};
    private static final int THUMBNAIL_BYTES = 5 * 1024;

    private Images() {}

    static String thumbnail(int item) {
        return "img" + item % 100 + "/thumb_" + item + ".png";
    }

    static String image(int item) {
        return "img" + item % 100 + "/image_" + item + ".png";
    }

    /** 5, 10, 50, 100 and 250 KiB for 45, 35, 15, 4 and 1 of a hundred items. */
    static int imageBytes(int item) {
        // Items next to each other have different sizes, and of each hundred exactly so many have each.
        int place = (int) ((item * 37L) % 100);
        int kib = place < 45 ? 5 : place < 80 ? 10 : place < 95 ? 50 : place < 99 ? 100 : 250;
        return kib * 1024;
    }

    static void make(Path directory, long seed, int items) throws IOException {
        Path covers = directory.resolve("images");
        for (int folder = 0; folder < 100; folder++) {
            Files.createDirectories(covers.resolve("img" + folder));
        }
        for (int item = 1; item <= items; item++) {
            SplittableRandom random = new SplittableRandom(seed * 1_000_003L + item);
            Files.write(covers.resolve(thumbnail(item)), picture(random, 60, 90, THUMBNAIL_BYTES));
            Files.write(covers.resolve(image(item)), picture(random, 240, 360, imageBytes(item)));
        }
        Path fixed = Files.createDirectories(directory.resolve("static"));
        for (int index = 0; index < BUTTONS.length; index++) {
            SplittableRandom random = new SplittableRandom(seed * 7919L + index);
            Files.write(fixed.resolve(BUTTONS[index] + ".png"), picture(random, index == 0 ? 180 : 90, 30, 2048));
        }
        Files.writeString(fixed.resolve("store.css"), "body { font: 16px sans-serif; max-width: 60em; margin: auto }\n"
            + "header, footer { display: flex; gap: 1em; align-items: center }\nsection img { margin: .3em }\n"
            + "td, th { text-align: left; padding: .1em .6em }\nlabel { display: block }\n");
    }

    static byte[] picture(SplittableRandom random, int width, int height, int size) throws IOException {
        ByteArrayOutputStream pixels = new ByteArrayOutputStream();
        Deflater deflater = new Deflater(Deflater.BEST_SPEED);
        try (DeflaterOutputStream packed = new DeflaterOutputStream(pixels, deflater)) {
            byte[] row = new byte[1 + width];
            int colour = 0;
            for (int y = 0; y < height; y++) {
                if (y % (height / 6) == 0) {
                    colour = random.nextInt(16);
                }
                for (int x = 0; x < width; x++) {
                    row[1 + x] = (byte) (x < width / 10 ? 0 : colour);
                }
                packed.write(row);
            }
        } finally {
            deflater.end();
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(size);
        DataOutputStream png = new DataOutputStream(bytes);
        png.writeLong(0x89504E470D0A1A0AL);
        ByteArrayOutputStream head = new ByteArrayOutputStream();
        DataOutputStream fields = new DataOutputStream(head);
        fields.writeInt(width);
        fields.writeInt(height);
        // Eight bits a pixel, colours by table, no interlacing.
        fields.write(new byte[] {8, 3, 0, 0, 0});
        chunk(png, "IHDR", head.toByteArray());
        byte[] table = new byte[16 * 3];
        random.nextBytes(table);
        chunk(png, "PLTE", table);
        chunk(png, "IDAT", pixels.toByteArray());
        // The chunk itself and the one at the end take twelve bytes each.
        int missing = size - bytes.size() - 24;
        if (missing < 0) {
            throw new IOException("a picture of " + size + " bytes is too small for its pixels");
        }
        byte[] noise = new byte[missing];
        random.nextBytes(noise);
        chunk(png, "noIs", noise);
        chunk(png, "IEND", new byte[0]);
        return bytes.toByteArray();
    }

    private static void chunk(DataOutputStream png, String name, byte[] content) throws IOException {
        byte[] kind = name.getBytes(StandardCharsets.US_ASCII);
        CRC32 sum = new CRC32();
        sum.update(kind);
        sum.update(content);
        png.writeInt(content.length);
        png.write(kind);
        png.write(content);
        png.writeInt((int) sum.getValue());
    }
}
