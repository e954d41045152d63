-- A store without jobs needs no check of its rows, and the first second of its life has better things to do.
UPDATE {schema}.maintainer SET checked_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
WHERE NOT EXISTS (SELECT FROM {schema}.job);

-- What the end of a job writes of its chain, next to the job while it runs: the claim reads the job anyway, and the end
-- need not read it again. Null in rows that a process of an earlier version has written, whose ends ask the job.
ALTER TABLE {schema}.running ADD keyed boolean, ADD chain_type_id integer, ADD chain_created_at bigint;

-- The ends again, which now find all they need in the row that they take away. Rows are looked up one by one, whatever
-- the server believes the tables hold: a plan that was made when they looked empty would compare all with all.

-- Finishes a chain that nobody waits for, and says whether it has. Nothing was done if the job does not run under the
-- fence, or somebody waits for its chain.
CREATE OR REPLACE FUNCTION {schema}.finish_one(the_job uuid, the_fence uuid, the_worker text, the_output text) RETURNS boolean
LANGUAGE plpgsql
SET plan_cache_mode = 'force_generic_plan' SET enable_seqscan = 'off' SET enable_bitmapscan = 'off' SET jit = 'off'
AS {body}
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.running AS r WHERE r.id = the_job AND r.fence = the_fence AND NOT r.awaited
        RETURNING r.*
    ), key AS (
        DELETE FROM {schema}.open_key AS k WHERE k.chain_id = ANY (ARRAY(
            SELECT j.chain_id FROM gone AS g JOIN {schema}.job AS j ON j.id = g.id WHERE g.keyed IS NOT FALSE AND j.keyed
        ))
    )
    INSERT INTO {schema}.result (id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, claims, final,
        started_at, settled_fence, completed_by, output)
    SELECT g.id, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        coalesce(g.chain_created_at, (SELECT j.chain_created_at FROM {schema}.job AS j WHERE j.id = g.id)), g.scheduled_at,
        coalesce(g.chain_type_id, (SELECT j.chain_type_id FROM {schema}.job AS j WHERE j.id = g.id)), g.attempt, g.claims,
        true, g.started_at, the_fence, the_worker, the_output
    FROM gone AS g;
    RETURN FOUND;
END
{body};

-- Finishes chains, whoever waits for them, and makes those jobs pending that wait for nothing more. Jobs are given once
-- each. A lock that somebody else has is waited for, for as long as `the_patience` says (null: as long as it takes), and
-- then everything fails. A row per chain that was finished, with whether somebody had it as blocker, and one per job that
-- was unblocked, with one of those that it had waited for.
CREATE OR REPLACE FUNCTION {schema}.finish_many(the_jobs uuid[], the_fences uuid[], the_workers text[], the_outputs text[],
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
    CROSS JOIN LATERAL (SELECT j.chain_id FROM {schema}.job AS j WHERE j.id = x.id OFFSET 0) AS j;

    -- A statement of its own, after the locks: it sees everybody who was there before them.
    IF chains IS NOT NULL THEN
        SELECT array_agg(d.id), array_agg(d.edges), array_agg(d.cause) INTO dependants, edges, causes
        FROM (
            SELECT b.job_id AS id, count(*)::integer AS edges, (array_agg(c.ender))[1] AS cause
            FROM unnest(enders, chains) AS c(ender, id)
            CROSS JOIN LATERAL (SELECT b.job_id FROM {schema}.blocker AS b WHERE b.chain_id = c.id OFFSET 0) AS b
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
        USING unnest(jobs, fences, workers, outputs) AS u(id, fence, worker, output) WHERE r.id = ANY (ARRAY[u.id])
        RETURNING r.id, r.scheduled_at, r.started_at, r.attempt, r.claims, r.awaited, r.keyed, r.chain_type_id,
            r.chain_created_at, u.fence, u.worker, u.output
    ), result AS (
        INSERT INTO {schema}.result (id, ended_at, chain_created_at, scheduled_at, chain_type_id, attempt, claims, final,
            started_at, settled_fence, completed_by, output)
        SELECT g.id, clock.now,
            coalesce(g.chain_created_at, (SELECT j.chain_created_at FROM {schema}.job AS j WHERE j.id = g.id)),
            g.scheduled_at, coalesce(g.chain_type_id, (SELECT j.chain_type_id FROM {schema}.job AS j WHERE j.id = g.id)),
            g.attempt, g.claims, true, g.started_at, g.fence, g.worker, g.output
        FROM gone AS g CROSS JOIN clock
    ), key AS (
        DELETE FROM {schema}.open_key AS k WHERE k.chain_id = ANY (ARRAY(
            SELECT j.chain_id
            FROM gone AS g
            CROSS JOIN LATERAL (SELECT j.chain_id, j.keyed FROM {schema}.job AS j WHERE j.id = g.id OFFSET 0) AS j
            WHERE g.keyed IS NOT FALSE AND j.keyed
        ))
    ), fewer AS (
        UPDATE {schema}.waiting AS w SET remaining = w.remaining - u.edges
        FROM unnest(dependants, edges) AS u(id, edges) WHERE w.id = ANY (ARRAY[u.id]) AND w.remaining > u.edges
    ), free AS (
        DELETE FROM {schema}.waiting AS w USING unnest(dependants, edges, causes) AS u(id, edges, cause)
        WHERE w.id = ANY (ARRAY[u.id]) AND w.remaining <= u.edges
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
    SELECT g.id, g.awaited, NULL::uuid, NULL::uuid, NULL::integer FROM gone AS g
    UNION ALL
    SELECT f.cause, true, f.id, j.chain_id, f.type_id
    FROM free AS f CROSS JOIN LATERAL (SELECT j.chain_id FROM {schema}.job AS j WHERE j.id = f.id OFFSET 0) AS j;
END
{body};
