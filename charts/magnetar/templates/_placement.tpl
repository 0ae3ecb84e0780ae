{{/* Where the operator's pods may run. */}}
{{- define "magnetar.placement" -}}
{{- $operator := .Values.operator }}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include "magnetar.selector" . | fromYaml)) }}
{{- if $operator.affinity }}
affinity:
  {{- toYaml $operator.affinity | nindent 2 }}
{{- else if eq $operator.antiAffinity "required" }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - {{- toYaml $term | nindent 8 }}
{{- else if eq $operator.antiAffinity "preferred" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          {{- toYaml $term | nindent 10 }}
{{- end }}
{{- with $operator.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{- toYaml (merge . (dict "labelSelector" (dict "matchLabels" (include "magnetar.selector" $ | fromYaml)))) | nindent 4 }}
  {{- end }}
{{- end }}
{{- with $operator.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $operator.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
