package example.palisade.internal;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/** Internal. JSON as the protocol needs it: maps, lists, texts, {@code Long} or {@code BigDecimal}, booleans and null. */
public final class Json {
    private static final int MAX_DEPTH = 64;

    private static final Pattern WHOLE = Pattern.compile("0|[1-9][0-9]*");

    private final String text;
    private final boolean strict;
    private int at;

    private Json(String text, boolean strict) {
        this.text = text;
        this.strict = strict;
    }

    /** Throws {@code IllegalArgumentException} if it is not an object. */
    public static Map<String, Object> object(String text) {
        return object(new Json(text, false));
    }

    /**
     * As {@link #object}, but no member may stand twice, because two readers could take different ones, and a {@code Long} is
     * written in digits alone.
     */
    public static Map<String, Object> strictObject(String text) {
        return object(new Json(text, true));
    }

    private static Map<String, Object> object(Json json) {
        Object value = json.value(0);
        json.blanks();
        if (json.at != json.text.length()) {
            throw json.unexpected();
        }
        Map<String, Object> found = asObject(value);
        if (found == null) {
            throw new IllegalArgumentException("it is not an object");
        }
        return found;
    }

    /** The value as an object, or null. */
    @SuppressWarnings("unchecked") // The keys of every map that the parser makes are texts.
    public static Map<String, Object> asObject(Object value) {
        return value instanceof Map ? (Map<String, Object>) value : null;
    }

    /** Writes an object of texts, numbers, booleans, lists and objects; members that are null are left out. */
    public static String write(Map<String, ?> object) {
        StringBuilder out = new StringBuilder();
        write(out, object);
        return out.toString();
    }

    private static void write(StringBuilder out, Object value) {
        if (value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof List<?> list) {
            String before = "[";
            for (Object one : list) {
                out.append(before);
                write(out, one);
                before = ",";
            }
            out.append(list.isEmpty() ? "[]" : "]");
        } else if (value instanceof Map<?, ?> object) {
            String before = "{";
            for (Map.Entry<?, ?> member : object.entrySet()) {
                if (member.getValue() != null) {
                    quote(out.append(before), member.getKey().toString());
                    write(out.append(':'), member.getValue());
                    before = ",";
                }
            }
            out.append(before.equals("{") ? "{}" : "}");
        } else {
            quote(out, value.toString());
        }
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (char one : text.toCharArray()) {
            if (one == '"' || one == '\\') {
                out.append('\\').append(one);
            } else if (one < ' ') {
                out.append(String.format("\\u%04x", (int) one));
            } else {
                out.append(one);
            }
        }
        out.append('"');
    }

    private Object value(int depth) {
        if (depth > MAX_DEPTH) {
            throw new IllegalArgumentException("it is nested too deeply");
        }
        blanks();
        switch (peek()) {
            case '{':
                return members(depth);
            case '[':
                return elements(depth);
            case '"':
                return string();
            case 't':
                return word("true", Boolean.TRUE);
            case 'f':
                return word("false", Boolean.FALSE);
            case 'n':
                return word("null", null);
            default:
                return number();
        }
    }

    private Map<String, Object> members(int depth) {
        Map<String, Object> found = new LinkedHashMap<>();
        at++;
        for (blanks(); peek() != '}'; blanks()) {
            if (!found.isEmpty()) {
                take(',');
                blanks();
            }
            String name = string();
            blanks();
            take(':');
            if (strict && found.containsKey(name)) {
                throw new IllegalArgumentException("a member occurs twice");
            }
            found.put(name, value(depth + 1));
        }
        at++;
        return found;
    }

    private List<Object> elements(int depth) {
        List<Object> found = new ArrayList<>();
        at++;
        for (blanks(); peek() != ']'; blanks()) {
            if (!found.isEmpty()) {
                take(',');
            }
            found.add(value(depth + 1));
        }
        at++;
        return found;
    }

    private String string() {
        take('"');
        StringBuilder found = new StringBuilder();
        while (peek() != '"') {
            char one = text.charAt(at++);
            if (one < ' ') {
                throw unexpected();
            }
            found.append(one == '\\' ? escaped() : one);
        }
        at++;
        return found.toString();
    }

    private char escaped() {
        char one = peek();
        at++;
        switch (one) {
            case '"':
            case '\\':
            case '/':
                return one;
            case 'b':
                return '\b';
            case 'f':
                return '\f';
            case 'n':
                return '\n';
            case 'r':
                return '\r';
            case 't':
                return '\t';
            case 'u':
                if (at + 4 > text.length()) {
                    throw unexpected();
                }
                at += 4;
                return (char) HexFormat.fromHexDigits(text, at - 4, at);
            default:
                throw unexpected();
        }
    }

    private Object number() {
        int from = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String digits = text.substring(from, at);
        BigDecimal exact = new BigDecimal(digits);
        if (strict && !WHOLE.matcher(digits).matches()) {
            return exact;
        }
        try {
            // A whole number, however it is written.
            return exact.longValueExact();
        } catch (ArithmeticException other) {
            return exact;
        }
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw unexpected();
        }
        at += word.length();
        return value;
    }

    private void blanks() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private char peek() {
        if (at >= text.length()) {
            throw unexpected();
        }
        return text.charAt(at);
    }

    private void take(char expected) {
        if (peek() != expected) {
            throw unexpected();
        }
        at++;
    }

    private IllegalArgumentException unexpected() {
        return new IllegalArgumentException("it is not JSON at character " + at);
    }
}
