-- What rights there are, and what rights there must be: 99_rights says which functions the roles may call, and which
-- objects are ours.

-- rights_on_objects returns the rights on each of our objects, as they are and as they must be. Owners have all rights,
-- the two roles may use the schema and call their functions, and nobody has any other. What shares the schema with us
-- is not ours; then others may use the schema. of_users: every user may call this function.
CREATE FUNCTION rights_on_objects()
RETURNS TABLE (kind text, object text, owner oid, grantor oid, grantee oid, privilege text, grantable boolean,
               must boolean, of_users boolean)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  here oid := (SELECT n.oid FROM pg_namespace n WHERE n.nspname = current_schema());
BEGIN
  RETURN QUERY
    WITH own AS MATERIALIZED (SELECT * FROM own_objects()),
    objects AS MATERIALIZED (
      SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind, 'pg_class'::regclass AS class, c.oid,
             c.relowner AS owner, c.relacl AS acl, CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END AS usual, NULL AS name
      FROM own o JOIN pg_class c ON c.relnamespace = here AND c.relname = o.name AND c.relkind IN ('r', 'v', 'S')
      WHERE o.kind = 'class'
      UNION ALL
      SELECT 'TYPE', 'pg_type'::regclass, t.oid, t.typowner, t.typacl, 'T', NULL
      FROM own o JOIN pg_class c ON c.relnamespace = here AND c.relname = o.name AND c.relkind = 'c'
        JOIN pg_type t ON t.oid = c.reltype WHERE o.kind = 'class'
      UNION ALL
      SELECT 'FUNCTION', 'pg_proc'::regclass, p.oid, p.proowner, p.proacl, 'f', p.proname::text
      FROM own o JOIN pg_proc p ON p.oid = to_regprocedure(o.name) WHERE o.kind = 'function'
      UNION ALL
      SELECT 'SCHEMA', 'pg_namespace'::regclass, n.oid, n.nspowner, n.nspacl, 'n', NULL FROM pg_namespace n
      WHERE n.oid = here),
    must AS (
      SELECT o.oid, a.grantee, a.privilege_type
      FROM objects o CROSS JOIN LATERAL aclexplode(acldefault(o.usual::"char", o.owner)) a WHERE a.grantee = o.owner
      UNION
      SELECT o.oid, r.oid, 'EXECUTE' FROM objects o JOIN callable() f ON f.name = o.name
        JOIN pg_roles r ON r.rolname = f.role
      UNION
      SELECT here, r.oid, 'USAGE' FROM pg_roles r WHERE r.rolname IN ('pglock_user', 'pglock_admin')
      UNION
      SELECT here, o.owner, 'USAGE' FROM objects o WHERE o.name = 'wrong_rights'),
    have AS (
      SELECT o.oid, a.*
      FROM objects o CROSS JOIN LATERAL aclexplode(coalesce(o.acl, acldefault(o.usual::"char", o.owner))) a
      UNION ALL
      SELECT o.oid, a.grantor, a.grantee, format('%s (%I)', a.privilege_type, c.attname), a.is_grantable
      FROM objects o JOIN pg_attribute c ON c.attrelid = o.oid AND o.class = 'pg_class'::regclass
        CROSS JOIN LATERAL aclexplode(c.attacl) a)
    SELECT o.kind, (pg_identify_object(o.class, o.oid, 0)).identity, o.owner, r.grantor, r.grantee, r.privilege_type,
           r.is_grantable, r.must,
           coalesce(o.name IN (SELECT f.name FROM callable() f WHERE f.role = 'pglock_user'), false)
    FROM objects o JOIN (
      SELECT coalesce(h.oid, m.oid) AS oid, h.grantor, coalesce(h.grantee, m.grantee) AS grantee,
             coalesce(h.privilege_type, m.privilege_type) AS privilege_type, h.is_grantable, m.oid IS NOT NULL AS must
      FROM have h FULL JOIN must m ON m.oid = h.oid AND m.grantee = h.grantee
        AND m.privilege_type = h.privilege_type) r ON r.oid = o.oid;
END $$;

-- role_name is a role as statements name it. One that another database has dropped a moment ago has none. It is part of
-- its callers' statements, and so looks up names by their search_path.
CREATE FUNCTION role_name(p_role oid) RETURNS text
LANGUAGE sql STABLE
AS $$
  SELECT CASE p_role WHEN 0 THEN 'PUBLIC'
    ELSE quote_ident(coalesce((SELECT r.rolname::text FROM pg_roles r WHERE r.oid = p_role), p_role::text)) END
$$;

-- acts_as says that a role can act as the owner of the functions anyway. 0 is everybody.
CREATE FUNCTION acts_as(p_role oid, p_owner oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$
  SELECT coalesce((SELECT pg_has_role(CASE r.rolname WHEN 'pg_database_owner' THEN d.datdba ELSE r.oid END, p_owner,
                                      'MEMBER')
                   FROM pg_roles r, pg_database d WHERE r.oid = p_role AND d.datname = current_database()), false)
$$;

-- strange_code lists the functions and operators in the schema that could get in the way of ours and belong to a role
-- that cannot act as their owner anyway.
CREATE FUNCTION strange_code(p_schema oid, p_owner oid) RETURNS TABLE (object text, role oid, mend text)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET jit = off
AS $$
BEGIN
  RETURN QUERY
    SELECT o.kind || ' ' || i.identity, o.owner, format('DROP %s %s', upper(o.kind COLLATE "C"), i.identity)
    FROM (SELECT 'routine' AS kind, 'pg_proc'::regclass AS class, p.oid, p.proowner AS owner FROM pg_proc p
          WHERE p.pronamespace = p_schema AND NOT p.oid = ANY (ARRAY(
            SELECT to_regprocedure(f.name)::oid FROM own_objects() f WHERE f.kind = 'function'))
          UNION ALL
          SELECT 'operator', 'pg_operator'::regclass, p.oid, p.oprowner FROM pg_operator p
          WHERE p.oprnamespace = p_schema) o
      CROSS JOIN LATERAL pg_identify_object(o.class, o.oid, 0) i
    WHERE NOT acts_as(o.owner, p_owner);
END $$;

-- wrong_rights lists who has rights on our objects that they must not have, or lacks those that they must have (lacks),
-- and who owns something of ours, or could put code in its way, without being the owner of the functions; whether row
-- security holds for that owner; and the statement with which the owner mends it. What somebody has passed on goes with
-- the right to pass it on. With p_new the objects are new, and nobody can have chosen to let a role of theirs use the
-- schema, or call what every user may call.
CREATE FUNCTION wrong_rights(p_new boolean DEFAULT false)
RETURNS TABLE (object text, grantee text, privileges text, lacks boolean, mend text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET jit = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH here AS MATERIALIZED (
    SELECT n.oid, p.proowner FROM pg_namespace n JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = 'wrong_rights'
    WHERE n.nspname = current_schema()),
  rights AS MATERIALIZED (SELECT * FROM rights_on_objects()),
  shared AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM here h JOIN pg_proc p ON p.pronamespace = h.oid
                   WHERE NOT p.oid = ANY (ARRAY(SELECT to_regprocedure(o.name)::oid FROM own_objects() o
                                                WHERE o.kind = 'function')))
      OR EXISTS (SELECT FROM here h JOIN pg_class c ON c.relnamespace = h.oid AND c.relkind NOT IN ('i', 't')
                 WHERE c.relname NOT IN (SELECT o.name FROM own_objects() o WHERE o.kind = 'class')) AS yes),
  wrong AS (
    SELECT r.*, r.grantor IS NULL AS lacks,
           role_name(r.grantee) AS who,
           r.must OR r.grantor <> r.owner AS passed,
           role_name(CASE WHEN r.grantor <> r.owner THEN r.grantor ELSE r.grantee END) AS whose
    FROM rights r
    WHERE (r.grantor IS NULL OR r.grantee <> r.owner AND (r.grantable OR NOT r.must))
      AND NOT (r.kind = 'SCHEMA' AND NOT r.must AND CASE r.privilege
                 WHEN 'USAGE' THEN r.grantee > 0 AND NOT p_new OR (SELECT s.yes FROM shared s)
                 ELSE acts_as(r.grantee, (SELECT h.proowner FROM here h)) END)
      AND (p_new OR r.grantee = 0 OR r.grantor IS NULL OR r.grantable OR NOT r.of_users))
  SELECT lower(w.kind COLLATE "C") || ' ' || w.object, w.who, string_agg(w.privilege, ', ' ORDER BY w.privilege),
         w.lacks,
         CASE WHEN w.lacks THEN format('GRANT %s ON %s %s TO %s', string_agg(w.privilege, ', ' ORDER BY w.privilege),
                                       w.kind, w.object, w.who)
           ELSE format('REVOKE %s%s ON %s %s FROM %s CASCADE', CASE WHEN w.passed THEN 'GRANT OPTION FOR ' ELSE '' END,
                       string_agg(w.privilege, ', ' ORDER BY w.privilege), w.kind, w.object, w.whose) END
  FROM wrong w GROUP BY w.kind, w.object, w.who, w.lacks, w.passed, w.whose
  UNION ALL
  SELECT DISTINCT lower(r.kind COLLATE "C") || ' ' || r.object, role_name(r.owner), 'ownership', false,
         format('ALTER %s %s OWNER TO %s', r.kind, r.object, role_name(h.proowner))
  FROM here h JOIN rights r ON r.owner <> h.proowner AND NOT (r.kind = 'SCHEMA' AND acts_as(r.owner, h.proowner))
  UNION ALL
  SELECT DISTINCT 'table ' || r.object, role_name(h.proowner), 'what row security hides', true,
         format('ALTER TABLE %s NO FORCE ROW LEVEL SECURITY', r.object)
  FROM here h JOIN rights r ON CASE WHEN r.kind = 'TABLE' THEN row_security_active(r.object) END
  UNION ALL
  SELECT o.object, role_name(o.role), 'ownership', false, o.mend
  FROM here h CROSS JOIN LATERAL strange_code(h.oid, h.proowner) o
  ORDER BY 1, 2, 3;
END $$;
