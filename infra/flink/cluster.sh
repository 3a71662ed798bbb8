#!/usr/bin/env bash
# Runs Flink, Beam's job server and a worker pool on this machine, until Ctrl-C:
#   FLINK=flink/pyflink infra/flink/cluster.sh FOLDER JOB_SERVER.jar
# Logs and process ids are written to FOLDER. Without a jar, only the cluster is started.
set -euo pipefail

folder=${1:?"usage: FLINK=FLINK_FOLDER infra/flink/cluster.sh FOLDER [JOB_SERVER.jar]"}
jar=${2:-}
: "${FLINK:?names the folder whose lib/ has the jars of Flink 2.2}"
: "${HOST:=127.0.0.1}" "${REST_PORT:=8081}" "${RPC_PORT:=6123}" "${JOB_PORT:=8099}"
: "${POOL_PORT:=50000}" "${TASK_MANAGERS:=2}" "${SLOTS:=1}" "${PYTHON:=.venv/bin/python}"

ls "$FLINK"/lib/flink-dist-2.2.*.jar >/dev/null || exit 2
if [ -n "$jar" ] && [ ! -f "$jar" ]; then
    echo "$jar: no such file; it is beam-runners-flink-2.2-job-server 2.77.0" >&2
    exit 2
fi
mkdir -p "$folder/conf" "$folder/artifacts"
folder=$(cd "$folder" && pwd)

cat >"$folder/conf/config.yaml" <<END
jobmanager.rpc.address: $HOST
jobmanager.rpc.port: $RPC_PORT
jobmanager.bind-host: $HOST
jobmanager.memory.process.size: 1g
rest.address: $HOST
rest.bind-address: $HOST
rest.port: $REST_PORT
taskmanager.bind-host: $HOST
taskmanager.host: $HOST
taskmanager.memory.process.size: 1536m
taskmanager.numberOfTaskSlots: $SLOTS
io.tmp.dirs: $folder
# notice the loss of a TaskManager within seconds, and repeat its work
heartbeat.interval: 2000
heartbeat.timeout: 20000
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 4
restart-strategy.fixed-delay.delay: 5 s
END
cat >"$folder/conf/log4j.properties" <<'END'
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %-5p %c{1} %m%n
END

opened=()
for package in lang net io nio util util.concurrent util.concurrent.atomic time math text; do
    opened+=("--add-opens=java.base/java.$package=ALL-UNNAMED")
done

# start NAME COMMAND…: runs in the background with a log and a PID file
start() {
    local name=$1
    shift
    "$@" >"$folder/$name.log" 2>&1 &
    echo $! >"$folder/$name.pid"
}

# of_flink NAME MEMORY CLASS ARGUMENT…
of_flink() {
    local name=$1 memory=$2 class=$3
    shift 3
    start "$name" java "${opened[@]}" "-Xmx$memory" \
        "-Dlog4j.configurationFile=$folder/conf/log4j.properties" \
        -cp "$FLINK/lib/*" "org.apache.flink.runtime.$class" --configDir "$folder/conf" "$@"
}

trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
of_flink jobmanager 512m entrypoint.StandaloneSessionClusterEntrypoint
# what bin/taskmanager.sh reckons from its process size: heap, network and managed memory
for number in $(seq "$TASK_MANAGERS"); do
    of_flink "taskmanager-$number" 512m taskexecutor.TaskManagerRunner \
        -D taskmanager.cpu.cores="$SLOTS" \
        -D taskmanager.memory.task.heap.size=384m -D taskmanager.memory.task.off-heap.size=0 \
        -D taskmanager.memory.framework.heap.size=128m \
        -D taskmanager.memory.framework.off-heap.size=128m \
        -D taskmanager.memory.network.min=128m -D taskmanager.memory.network.max=128m \
        -D taskmanager.memory.managed.size=256m \
        -D taskmanager.memory.jvm-metaspace.size=256m \
        -D taskmanager.memory.jvm-overhead.min=256m -D taskmanager.memory.jvm-overhead.max=256m
done
# the pool starts a worker process on request of a TaskManager, with the `python` on its PATH
PATH=$(cd "$(dirname "$PYTHON")" && pwd):$PATH start pool \
    "$PYTHON" -P -m apache_beam.runners.worker.worker_pool_main --service_port="$POOL_PORT"
if [ -n "$jar" ]; then
    start jobserver java "${opened[@]}" -jar "$jar" --flink-master "http://$HOST:$REST_PORT" \
        --artifacts-dir "$folder/artifacts" --job-host "$HOST" \
        --job-port "$JOB_PORT" --artifact-port 0 --expansion-port 0
fi
echo "pages: http://$HOST:$REST_PORT  job_endpoint: $HOST:$JOB_PORT  workers: localhost:$POOL_PORT"
wait
