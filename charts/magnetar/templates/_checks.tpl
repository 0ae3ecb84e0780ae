{{/* What the schema cannot say in a sentence. */}}
{{- define "magnetar.checks" -}}
{{- if not .Values.image.repository }}
{{- fail (include "magnetar.no-image" .) }}
{{- end }}
{{- if eq .Values.image.tag "latest" }}
{{- fail "\n\nimage.tag is latest: two brokers of one cluster could then run different versions. Set a fixed tag, or image.digests." }}
{{- end }}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) }}
{{- fail "\n\nserviceAccount.create is false and serviceAccount.name is empty: set the name of the account that the operator is to use." }}
{{- end }}
{{- if and (has "*" .Values.watchNamespaces) (gt (len .Values.watchNamespaces) 1) }}
{{- fail "\n\nwatchNamespaces has * beside names: * alone stands for all namespaces; take the names or the * out." }}
{{- end }}
{{- $known := list }}
{{- range (.Files.Get "files/alerts.yaml" | fromYaml).alerts }}
{{- $known = append $known .alert }}
{{- end }}
{{- range .Values.metrics.alerts.disabled }}
{{- if not (has . $known) }}
{{- fail (printf "\n\nmetrics.alerts.disabled names %s, which is no alert of this chart. There are: %s." . (join ", " $known)) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "magnetar.no-image" }}

image.repository is empty: this chart knows no published images. Make them from the checkout, then install again.

  a registry:    make image REPO=registry.example/you/magnetar      (builds them, and says how to push them)
                 helm upgrade --install {{ .Release.Name }} charts/magnetar --set image.repository=registry.example/you/magnetar
  kind:          docker build -t magnetar:{{ .Chart.AppVersion }} . && docker build -t magnetar-operator:{{ .Chart.AppVersion }} --target operator .
                 kind load docker-image magnetar:{{ .Chart.AppVersion }} magnetar-operator:{{ .Chart.AppVersion }}
                 helm upgrade --install {{ .Release.Name }} charts/magnetar --set image.repository=magnetar
  this machine:  make cluster                                       (does all of it)
{{ end }}
