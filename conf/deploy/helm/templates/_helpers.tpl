{{- define "deltamq.name" -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{- end }}

{{- define "deltamq.labels" -}}
app.kubernetes.io/name: deltamq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "deltamq.account" -}}{{ .Values.serviceAccount.name | default (include "deltamq.name" .) }}{{- end }}

{{- define "deltamq.scheme" -}}{{ if .Values.service.tlsSecret }}https{{ else }}http{{ end }}{{- end }}

{{- /* What the containers of service and jobs have in common. */ -}}
{{- define "deltamq.env" -}}
- {name: DELTAMQ_WAREHOUSE_URI, value: {{ required "warehouse: the URL of an object store" .Values.warehouse | quote }}}
{{- range $name, $value := .Values.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "deltamq.envFrom" -}}
{{- with .Values.envSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{- define "deltamq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "deltamq.security" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}
