{{/* Plural names of our kinds, and their scale subresources, as the resource definitions in files/crds have them. */}}
{{- define "magnetar.kinds" -}}
{{- range $path, $_ := .Files.Glob "files/crds/*.yaml" }}
- {{ ($.Files.Get $path | fromYaml).spec.names.plural }}
{{- end }}
{{- end }}

{{- define "magnetar.scalable" -}}
{{- range $path, $_ := .Files.Glob "files/crds/*.yaml" }}
{{- $spec := ($.Files.Get $path | fromYaml).spec }}
{{- if (index $spec.versions 0).subresources.scale }}
- {{ $spec.names.plural }}/scale
{{- end }}
{{- end }}
{{- end }}
