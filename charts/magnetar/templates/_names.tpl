{{/* Names and labels. */}}
{{- define "magnetar.name" -}}
{{- if contains "magnetar" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-magnetar" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
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

{{- define "magnetar.labels" -}}
{{ include "magnetar.selector" . }}
app.kubernetes.io/part-of: magnetar
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "magnetar.image" -}}
{{- if not .Values.image.repository }}
{{- fail (include "magnetar.no-image" .) }}
{{- end }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- define "magnetar.no-image" }}

image.repository is empty: this chart knows no published image. Make one from the checkout, then install again.

  a registry:    make image REPO=registry.example/you/magnetar      (builds it)
                 docker push registry.example/you/magnetar:{{ .Chart.AppVersion }}
                 helm upgrade --install {{ .Release.Name }} charts/magnetar --set image.repository=registry.example/you/magnetar
  kind:          docker build -t magnetar:{{ .Chart.AppVersion }} . && kind load docker-image magnetar:{{ .Chart.AppVersion }}
                 helm upgrade --install {{ .Release.Name }} charts/magnetar --set image.repository=magnetar
  this machine:  make cluster                                       (does all of it)
{{ end }}
