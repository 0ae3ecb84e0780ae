#!/bin/bash
# Entry point of the Magnetar image. "executor" is what Spark passes to the pods it creates; anything else is a command.
set -euo pipefail

if [[ "${1:-}" == executor ]]; then
  # Spark numbers the options SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...; each value is one word, whatever it contains.
  options=()
  for name in "${!SPARK_JAVA_OPT_@}"; do
    options+=("${!name}")
  done
  exec "${JAVA_HOME}/bin/java" \
    ${options[@]+"${options[@]}"} \
    "-Xms${SPARK_EXECUTOR_MEMORY}" "-Xmx${SPARK_EXECUTOR_MEMORY}" \
    -cp "${SPARK_CONF_DIR}:${SPARK_HOME}/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "${SPARK_DRIVER_URL}" \
    --executor-id "${SPARK_EXECUTOR_ID}" \
    --cores "${SPARK_EXECUTOR_CORES}" \
    --app-id "${SPARK_APPLICATION_ID}" \
    --hostname "${SPARK_EXECUTOR_POD_IP}" \
    --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID}" \
    --podName "${SPARK_EXECUTOR_POD_NAME}"
fi

if [[ $# -eq 0 ]]; then
  set -- magnetar
fi
exec "$@"
