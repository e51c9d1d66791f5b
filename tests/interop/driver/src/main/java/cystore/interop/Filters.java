package cystore.interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.StringReader;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.SqlFilter;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.filter.parser.SelectorParserConstants;

/** What RocketMQ's SQL92 filter says to expressions and messages. */
final class Filters {
    /** The parser, to see what it leaves unread: RocketMQ ignores text behind a whole expression. */
    private static final class Rest extends SelectorParser {
        Rest(String text) {
            super(new StringReader(text));
        }

        boolean isLeft() throws Exception {
            parse();
            return getNextToken().kind != SelectorParserConstants.EOF;
        }
    }

    private Filters() {
    }

    static JSONArray evaluate(JSONObject request) {
        JSONArray answers = new JSONArray();
        for (Object expression : request.getJSONArray("expressions")) {
            answers.add(answer((String) expression, request.getJSONArray("messages")));
        }
        return answers;
    }

    private static JSONObject answer(String text, JSONArray messages) {
        JSONObject answer = new JSONObject(true);
        Expression expression;
        try {
            expression = new SqlFilter().compile(text);
        } catch (MQFilterException e) {
            answer.put("refused", String.valueOf(e.getCause()));
            return answer;
        }
        try {
            answer.put("rest", new Rest(text).isLeft());
        } catch (Exception | Error e) {
            answer.put("rest", true);
        }
        JSONArray matches = new JSONArray();
        for (int i = 0; i < messages.size(); i++) {
            Map<String, String> properties = new HashMap<>();
            messages.getJSONObject(i).forEach((name, value) -> properties.put(name, (String) value));
            matches.add(isMatched(expression, properties));
        }
        answer.put("matches", matches);
        return answer;
    }

    /** As ExpressionMessageFilter.isMatchedByCommitLog: an error is no match. */
    static boolean isMatched(Expression expression, Map<String, String> properties) {
        try {
            Object result = expression.evaluate(new MessageEvaluationContext(properties));
            return result instanceof Boolean && (Boolean) result;
        } catch (Exception e) {
            return false;
        }
    }
}
