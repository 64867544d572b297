package main

const (
	fencing = "migrations/000003_fencing.up.sql"
	store   = "./fencedstore"
)

func init() { all = append(all, ofFencing...) }

// ofFencing are the faults of guarded tables, of many fences, of keys done once, of epochs and graces, and of what is
// outside the database.
var ofFencing = []mutant{
	{"I22 tokens have no epoch", []edit{
		{speed, "  RETURN GREATEST((was.epoch << 44) + nextval('fencing_token_seq'), p_above + 1);", "  RETURN GREATEST(nextval('fencing_token_seq'), p_above + 1);"},
	}, integration, "^TestI22_TokensAscendAfterAFailover"},
	{"I22 the epoch is the timeline alone", []edit{
		{speed, "LEAST(was.epoch + line - CASE WHEN line > was.timeline THEN was.timeline ELSE 0 END, 524287)", "line - 1"},
	}, integration, "^TestI22_TokensAscendAfterARestore"},
	{"I23 a standby checks leases", []edit{
		{speed, "  IF pg_is_in_recovery() THEN\n    RAISE EXCEPTION 'a standby cannot tell", "  IF false THEN\n    RAISE EXCEPTION 'a standby cannot tell"},
	}, integration, "^TestI23_"},
	{"I7 a holder believes in its grace", []edit{
		{"pglock/lease.go", "trustDeadline(sent, l.ttl, remaining-l.grace)", "trustDeadline(sent, l.ttl+l.grace, remaining)"},
	}, library, "Grace"},
	{"I22 a grant after a failover does not wait for its grace", []edit{
		{"pglock/grace.go", "case !changed || left <= 0:", "case changed || !changed:"},
	}, library, "Grace"},
	{"I3 the fence of any resource opens a guarded table", []edit{
		{fencing, "f.resource = p_resource AND f.fenced_xact = mine", "f.fenced_xact = mine"},
	}, integration, "^TestI3_I18_OnlyThis"},
	{"I3 the fence of any transaction opens a guarded table", []edit{
		{fencing, "f.resource = p_resource AND f.fenced_xact = mine", "f.resource = p_resource"},
	}, integration, "^TestI3_I18_OnlyThis"},
	{"I3 the ID of an old transaction opens a guarded table", []edit{
		{fencing, "f.fenced_xact = mine AND f.advanced_at >= transaction_timestamp()", "f.fenced_xact = mine"},
	}, integration, "^TestI3_I18_OnlyThis"},
	{"I3 a bypass outlives its transaction", []edit{
		{fencing, "b.xact = mine AND b.kind = 'bypass' AND b.at >= transaction_timestamp()", "b.kind = 'bypass'"},
	}, integration, "^TestI3_I18_OnlyThis|Bypass"},
	{"I3 session_replication_role opens a guarded table", []edit{
		{fencing, "      EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', rel.name, g.name);", "      PERFORM 1;"},
	}, integration, "^TestI3_EveryWayToWrite|^TestI3_EveryWayInto"},
	{"I3 only the key that a row had before is guarded", []edit{
		{fencing, "    AND (after IS NULL OR require_fence(TG_ARGV[0] || '/' || after,", "    AND (before IS NOT NULL OR after IS NULL OR require_fence(TG_ARGV[0] || '/' || after,"},
	}, integration, "^TestI3_AMovedRow"},
	{"I25 fences are taken as they are named", []edit{
		{fencing, "    ORDER BY 4\n", ""},
	}, integration, "^TestI25_FencesAreTaken"},
	{"I3 the same key is done twice", []edit{
		{fencing, "  once.is_first := FOUND;", "  once.is_first := true;"},
	}, integration, "^TestOnce"},
	{"a key that was forgotten is done again", []edit{
		{fencing, "  IF p_of + p_keep <= clock_timestamp() THEN", "  IF false THEN"},
	}, integration, "^TestOnceRefuses"},
	{"I16 a fence that meets a lower limit of the user raises it", []edit{
		{queue, "|| coalesce(current_setting('transaction_timeout', true), '0') = '000000' THEN", "IS NOT NULL THEN"},
	}, integration, "^TestI16_"},
	{"I3 SET CONSTRAINTS before the fence uses up the check", []edit{
		{speed, "  IF current_setting('pglock.checked', true) = noted THEN", "  IF false THEN"},
	}, integration, "^TestI4_"},
}
