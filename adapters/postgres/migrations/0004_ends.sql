-- Ends of chains as functions. A function costs a client one statement, whatever it does, and each statement in it sees
-- what was committed before that one began, which no single statement does, however long. And it has settings of its own:
-- in the transaction of a user, whose settings are the user's, its plans are made once, and follow the indexes.

-- Finishes a chain that nobody waits for, and says whether it has. Nothing was done if the job does not run under the
-- fence, or somebody waits for its chain.
CREATE FUNCTION {schema}.finish_one(the_job uuid, the_fence uuid, the_worker text, the_output text) RETURNS boolean
LANGUAGE plpgsql
SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET enable_bitmapscan = 'off' SET jit = 'off'
AS {body}
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.running AS r WHERE r.id = the_job AND r.fence = the_fence AND NOT r.awaited
        RETURNING r.id, r.scheduled_at, r.started_at, r.attempt, r.claims
    ), ended AS MATERIALIZED (
        SELECT g.*, j.chain_id, j.chain_type_id, j.chain_created_at, j.keyed
        FROM gone AS g JOIN {schema}.job AS j ON j.id = g.id
    ), key AS (
        DELETE FROM {schema}.open_key AS k USING ended AS e WHERE e.keyed AND k.chain_id = e.chain_id
    )
    INSERT INTO {schema}.result (id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, claims, final,
        started_at, settled_fence, completed_by, output)
    SELECT e.id, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, e.chain_created_at, e.scheduled_at,
        e.chain_type_id, e.attempt, e.claims, true, e.started_at, the_fence, the_worker, the_output
    FROM ended AS e;
    RETURN FOUND;
END
{body};

-- Finishes chains, whoever waits for them, and makes those jobs pending that wait for nothing more. Jobs are given once
-- each. A lock that somebody else has is waited for, for as long as `the_patience` says (null: as long as it takes), and
-- then everything fails. A row per chain that was finished, with whether somebody had it as blocker, and one per job that
-- was unblocked, with one of those that it had waited for.
CREATE FUNCTION {schema}.finish_many(the_jobs uuid[], the_fences uuid[], the_workers text[], the_outputs text[],
    the_step bigint, the_patience text)
RETURNS TABLE (finished uuid, was_awaited boolean, unblocked uuid, unblocked_chain uuid, unblocked_type integer)
LANGUAGE plpgsql
SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET enable_bitmapscan = 'off' SET jit = 'off'
AS {body}
DECLARE
    -- What runs under its fence, of what was given.
    jobs uuid[];
    fences uuid[];
    workers text[];
    outputs text[];
    -- Those that somebody waits for, and their chains.
    enders uuid[];
    chains uuid[];
    -- The jobs that may wait for them, with the number of edges, and one that is at the other end.
    dependants uuid[];
    edges integer[];
    causes uuid[];
    held bigint;
BEGIN
    IF the_patience IS NOT NULL THEN
        PERFORM set_config('lock_timeout', the_patience, true);
    END IF;

    -- The locks of the chains. From here on nobody can begin to wait for one of them.
    SELECT array_agg(x.id), array_agg(u.fence), array_agg(u.worker), array_agg(u.output),
        array_agg(x.id) FILTER (WHERE x.awaited), array_agg(j.chain_id) FILTER (WHERE x.awaited)
    INTO jobs, fences, workers, outputs, enders, chains
    FROM unnest(the_jobs, the_fences, the_workers, the_outputs) AS u(id, fence, worker, output)
    CROSS JOIN LATERAL (
        SELECT r.id, r.awaited FROM {schema}.running AS r WHERE r.id = u.id AND r.fence = u.fence FOR UPDATE
    ) AS x
    JOIN {schema}.job AS j ON j.id = x.id;

    -- A statement of its own, after the locks: it sees everybody who was there before them.
    IF chains IS NOT NULL THEN
        SELECT array_agg(d.id), array_agg(d.edges), array_agg(d.cause) INTO dependants, edges, causes
        FROM (
            SELECT b.job_id AS id, count(*)::integer AS edges, (array_agg(c.ender))[1] AS cause
            FROM unnest(enders, chains) AS c(ender, id) JOIN {schema}.blocker AS b ON b.chain_id = c.id
            GROUP BY b.job_id
        ) AS d;
        LOOP
            SELECT count(*) INTO held
            FROM (
                SELECT w.id FROM {schema}.waiting AS w WHERE w.id = ANY (dependants) ORDER BY w.id FOR UPDATE
            ) AS x;
            -- Another transaction may have taken a row away while it was waited for. Either the job waits no more, or its
            -- row is a new one, and must not be forgotten.
            EXIT WHEN held = (SELECT count(*) FROM {schema}.waiting AS w WHERE w.id = ANY (dependants));
        END LOOP;
    END IF;

    -- And again one of its own: it sees how many edges others have taken before.
    RETURN QUERY
    WITH clock AS MATERIALIZED (
        SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
    ), gone AS (
        DELETE FROM {schema}.running AS r
        USING unnest(jobs, fences, workers, outputs) AS u(id, fence, worker, output) WHERE r.id = u.id
        RETURNING r.id, r.scheduled_at, r.started_at, r.attempt, r.claims, r.awaited, u.fence, u.worker, u.output
    ), ended AS MATERIALIZED (
        SELECT g.*, j.chain_id, j.chain_type_id, j.chain_created_at, j.keyed
        FROM gone AS g JOIN {schema}.job AS j ON j.id = g.id
    ), result AS (
        INSERT INTO {schema}.result (id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, claims, final,
            started_at, settled_fence, completed_by, output)
        SELECT e.id, clock.now, e.chain_created_at, e.scheduled_at, e.chain_type_id, e.attempt, e.claims, true,
            e.started_at, e.fence, e.worker, e.output
        FROM ended AS e CROSS JOIN clock
    ), key AS (
        DELETE FROM {schema}.open_key AS k USING ended AS e WHERE e.keyed AND k.chain_id = e.chain_id
    ), fewer AS (
        UPDATE {schema}.waiting AS w SET remaining = w.remaining - u.edges
        FROM unnest(dependants, edges) AS u(id, edges) WHERE w.id = u.id AND w.remaining > u.edges
    ), free AS (
        DELETE FROM {schema}.waiting AS w USING unnest(dependants, edges, causes) AS u(id, edges, cause)
        WHERE w.id = u.id AND w.remaining <= u.edges
        RETURNING w.*, u.cause
    ), later AS (
        INSERT INTO {schema}.later (id, scheduled_at, type_id, attempt, claims, priority, awaited, started_at,
            settled_fence)
        SELECT f.id, f.scheduled_at, f.type_id, f.attempt, f.claims, f.priority, f.awaited, f.started_at, f.settled_fence
        FROM free AS f CROSS JOIN clock WHERE f.scheduled_at > clock.now
    ), ready AS (
        INSERT INTO {schema}.ready (id, rank, scheduled_at, type_id, attempt, claims, priority, awaited, started_at,
            settled_fence)
        SELECT f.id, clock.now - f.priority * the_step, clock.now, f.type_id, f.attempt, f.claims, f.priority, f.awaited,
            f.started_at, f.settled_fence
        FROM free AS f CROSS JOIN clock WHERE f.scheduled_at <= clock.now
    )
    SELECT e.id, e.awaited, NULL::uuid, NULL::uuid, NULL::integer FROM ended AS e
    UNION ALL
    SELECT f.cause, true, f.id, j.chain_id, f.type_id FROM free AS f JOIN {schema}.job AS j ON j.id = f.id;
END
{body};
