package pgtest

import (
	"strings"
	"testing"
)

// careful is a function that leaves nothing to its caller's search_path, and uses everything that such a function may
// use.
const careful = `
#variable_conflict use_column
DECLARE
  at pg_catalog.tid;
  n  CONSTANT bigint := pg_catalog.length('(');
  ok boolean;
  a  pg_catalog.record;
BEGIN
  FOR a IN SELECT g.x FROM ROWS FROM (pg_catalog.unnest(p_names), pg_catalog.unnest(p_ids)) WITH ORDINALITY AS g (x, y, n)
    ORDER BY g.x COLLATE pg_catalog."C" LOOP
    ok := f.done;
  END LOOP;
  UPDATE pglock.locks l SET token = (SELECT i.epoch OPERATOR(pg_catalog.<<) 44 FROM pglock.installation i), holder = p_holder,
    at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) p_ttl -- = is no operator here; nor here: /* + */
  WHERE l.ctid OPERATOR(pg_catalog.=) (
    SELECT h.ctid FROM pglock.locks h, ONLY "pglock".waiters w JOIN pglock.sessions s ON s.id OPERATOR(pg_catalog.=) w.id
    WHERE (p_slot IS NULL OR p_slot OPERATOR(pg_catalog.>=) 0) AND NOT h.queued AND h.text OPERATOR(pg_catalog.<>) 'it''s < = IN'
    ORDER BY h.slot DESC LIMIT 1 FOR UPDATE SKIP LOCKED)
  RETURNING true, CASE WHEN l.queued THEN '{"a": 1}'::pg_catalog.json ELSE 'x'::pg_catalog.json END INTO f.done, f.more;
  IF NOT FOUND THEN
    SELECT a.done INTO f.done FROM pglock.otherwise(ROW(p_name, NULL), coalesce(p_a, p_b)) a;
  END IF;
  f.more := NULL;
  PERFORM pg_catalog.nextval('pglock.numbers'::pg_catalog.regclass);
  PERFORM pg_catalog.set_config('a', 'off', true);
END `

func TestUnqualifiedFindsNothingWhereEverythingIsQualified(t *testing.T) {
	if found := Unqualified(careful, "pglock"); len(found) != 0 {
		t.Errorf("%q", found)
	}
}

func TestUnqualifiedFindsWhatIsLeftToTheSearchPath(t *testing.T) {
	for what, careless := range map[string]string{
		"an operator":              "SELECT a.x INTO f.y FROM pglock.locks a WHERE a.x = a.y",
		"an operator of its own":   "PERFORM p_a OPERATOR(=) p_b",
		"somebody's operator":      "PERFORM p_a OPERATOR(public.=) p_b",
		"a sign":                   "f.x := -p_a",
		"an arrow":                 "f.x := p_more -> 'a'",
		"an operator with ANY":     "PERFORM p_a = ANY (p_b)",
		"a comparison that is set": "UPDATE pglock.locks SET a = b = c",
		"one after it":             "UPDATE pglock.locks SET a = 1, b = c WHERE d = 1",
		"BETWEEN":                  "PERFORM p_a BETWEEN p_b AND p_c",
		"NOT BETWEEN":              "PERFORM p_a NOT BETWEEN SYMMETRIC p_b AND p_c",
		"IN":                       "PERFORM p_a IN (1, 2)",
		"IN of a query":            "PERFORM p_a IN (SELECT a.x FROM pglock.locks a)",
		"LIKE":                     "PERFORM p_a LIKE 'x'",
		"ILIKE":                    "PERFORM p_a ILIKE 'x'",
		"SIMILAR TO":               "PERFORM p_a SIMILAR TO 'x'",
		"IS DISTINCT FROM":         "PERFORM p_a IS DISTINCT FROM p_b",
		"IS NOT DISTINCT FROM":     "PERFORM p_a IS NOT DISTINCT FROM p_b",
		"CASE x WHEN":              "PERFORM CASE p_a WHEN 1 THEN 2 END",
		"a CASE of an expression":  "PERFORM CASE (p_a) WHEN 1 THEN 2 END",
		"NULLIF":                   "PERFORM NULLIF(p_a, 1)",
		"JOIN USING":               "PERFORM FROM pglock.a JOIN pglock.b USING (x)",
		"NATURAL JOIN":             "PERFORM FROM pglock.a NATURAL JOIN pglock.b",
		"ORDER BY USING":           "PERFORM FROM pglock.a ORDER BY a.x USING <",
		"a type":                   "f.x := 'a'::json",
		"an array's type":          "f.x := 'a'::text[]",
		"a keyword's type":         "f.x := 'a'::boolean",
		"somebody's type":          "f.x := 'a'::public.json",
		"CAST":                     "f.x := CAST('a' AS json)",
		"a constant of a type":     "f.x := interval '1 s'",
		"a quoted type":            `f.x := "mood" 'sad'`,
		"a collation":              `PERFORM p_a COLLATE "C"`,
		"somebody's collation":     `PERFORM p_a COLLATE public."C"`,
		"ROWS FROM":                "PERFORM FROM ROWS FROM (unnest(p_a)) AS g (x)",
		"one more of ROWS FROM":    "PERFORM FROM ROWS FROM (pg_catalog.unnest(p_a), unnest(p_b)) AS g (x, y)",
		"a table after ROWS FROM":  "PERFORM FROM ROWS FROM (pg_catalog.unnest(p_a)) AS g (x), waiters w",
		"IN within a loop":         "FOR a IN SELECT p_a IN (1, 2) LOOP END LOOP",
		"a loop over a call":       "FOR a IN SELECT f(p_a) LOOP END LOOP",
		"a variable's type":        "DECLARE x text; BEGIN END",
		"a second variable's type": "DECLARE x int; y tid := NULL; BEGIN END",
		"a constant's type":        "DECLARE x CONSTANT record; BEGIN END",
		"a variable's value":       "DECLARE x int := length('x'); BEGIN END",
		"a table":                  "PERFORM FROM locks",
		"a quoted table":           `PERFORM FROM "locks"`,
		"a second table":           "PERFORM FROM pglock.locks l, waiters w",
		"a joined table":           "PERFORM FROM pglock.locks l LEFT JOIN waiters w ON true",
		"a table after a query":    "PERFORM FROM (SELECT FROM pglock.locks l) a, waiters w",
		"a table inside":           "PERFORM FROM pglock.locks l WHERE EXISTS (SELECT FROM waiters)",
		"a table that is written":  "UPDATE locks SET a = 1",
		"a table that is filled":   "INSERT INTO locks VALUES (1)",
		"a table that is emptied":  "DELETE FROM locks",
		"a table that is used":     "DELETE FROM pglock.locks l USING waiters w",
		"a table of another":       "PERFORM FROM public.locks",
		"a call":                   "f.x := clock_timestamp()",
		"a quoted call":            `f.x := "clock_timestamp"()`,
		"a call of another's":      "f.x := public.clock_timestamp()",
		"a call in a call":         "f.x := pg_catalog.length(pg_catalog.upper(lower(p_a)))",
		"a call as a table":        "PERFORM FROM otherwise(1) a",
		"a statement made":         "EXECUTE p_a",
		"a name in a text":         "PERFORM pg_catalog.nextval('numbers'::pg_catalog.regclass)",
		"a name in a variable":     "PERFORM pg_catalog.nextval(p_a::pg_catalog.regclass)",
		"another's name in a text": "PERFORM pg_catalog.nextval('public.numbers'::pg_catalog.regclass)",
		"what nobody knows":        "f.x := $1",
	} {
		if found := Unqualified("BEGIN "+careless+"; END", "pglock"); len(found) == 0 {
			t.Errorf("%s: nothing is found in %q", what, careless)
		}
	}
}

// Whatever is taken off the careful function is found.
func TestUnqualifiedFindsEveryQualificationThatIsMissing(t *testing.T) {
	for _, qualification := range []string{"pg_catalog.", "pglock.", `"pglock".`} {
		for i := range len(careful) {
			if strings.HasPrefix(careful[i:], qualification) {
				if careless := careful[:i] + careful[i+len(qualification):]; len(Unqualified(careless, "pglock")) == 0 {
					t.Errorf("nothing is found without %s before %.30q", qualification, careful[i+len(qualification):])
				}
			}
		}
	}
}
