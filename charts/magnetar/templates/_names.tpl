{{/* Names, labels and images. */}}
{{- define "magnetar.name" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride }}
{{- else if contains "magnetar" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-magnetar" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "magnetar.account" -}}
{{ .Values.serviceAccount.name | default (printf "%s-operator" (include "magnetar.name" .)) }}
{{- end }}

{{/* The network policies that the operator makes for etcd admit pods with the first two labels. */}}
{{- define "magnetar.selector" -}}
app.kubernetes.io/name: magnetar
app.kubernetes.io/component: operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of objects that no selector should take for the operator's own. */}}
{{- define "magnetar.common" -}}
{{- $ours := dict "app.kubernetes.io/part-of" "magnetar" "app.kubernetes.io/managed-by" .Release.Service }}
{{- $_ := set $ours "app.kubernetes.io/version" .Chart.AppVersion }}
{{- $_ := set $ours "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version) }}
{{- merge $ours .Values.commonLabels | toYaml }}
{{- end }}

{{- define "magnetar.labels" -}}
{{- merge (include "magnetar.selector" . | fromYaml) (include "magnetar.common" . | fromYaml) | toYaml }}
{{- end }}

{{/* `magnetar.image (list $ "operator")`: the brokers' repository bears no suffix. */}}
{{- define "magnetar.image" -}}
{{- $top := index . 0 }}{{ $of := index . 1 }}{{ $image := $top.Values.image }}
{{- $repository := eq $of "broker" | ternary $image.repository (printf "%s-%s" $image.repository $of) }}
{{- with get $image.digests $of }}{{ printf "%s@%s" $repository . }}
{{- else }}{{ printf "%s:%s" $repository ($image.tag | default $top.Chart.AppVersion) }}{{ end }}
{{- end }}

{{/* Namespaces to watch, as JSON; an empty list = all. */}}
{{- define "magnetar.watched" -}}
{{- if has "*" .Values.watchNamespaces }}[]{{ else }}{{ .Values.watchNamespaces | default (list .Release.Namespace) | toJson }}{{ end }}
{{- end }}

{{/* The `restricted` pod security standard, as the user of the image. */}}
{{- define "magnetar.pod-security" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "magnetar.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Whether to make objects of prometheus-operator: `magnetar.monitored (list $ enabled)` is "yes" or "". */}}
{{- define "magnetar.monitored" -}}
{{- $known := (index . 0).Capabilities.APIVersions.Has "monitoring.coreos.com/v1" }}
{{- $wanted := index . 1 | toString }}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") $known) }}yes{{ end }}
{{- end }}
