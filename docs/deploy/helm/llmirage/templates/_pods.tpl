{{- define "llmirage.labels" -}}
app.kubernetes.io/name: llmirage
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "llmirage.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{- toYaml .Values.resources | nindent 2 }}
{{- end }}

{{- define "llmirage.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* A Deployment and its Service. context: the root; name, component, replicas; args: of serve; ports: how many from 8000 on. */}}
{{- define "llmirage.server" -}}
{{- $labels := printf "%s\napp.kubernetes.io/component: %s\nllmirage/part: %s" (include "llmirage.labels" .context) .component .name }}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .context.Release.Name }}-{{ .name }}
  labels: {{- $labels | nindent 4 }}
spec:
  {{- if not (kindIs "invalid" .replicas) }}
  replicas: {{ .replicas }}
  {{- end }}
  selector:
    matchLabels: {{- $labels | nindent 6 }}
  template:
    metadata:
      labels: {{- $labels | nindent 8 }}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "8000"
    spec:
      {{- include "llmirage.pod" .context | nindent 6 }}
      containers:
        - name: llmirage
          {{- include "llmirage.image" .context | nindent 10 }}
          args: {{- concat (list "serve" "--host" "0.0.0.0" "--port" "8000") .args | toYaml | nindent 12 }}
          ports:
            {{- range $port := until (int .ports) }}
            - {name: {{ if $port }}instance-{{ sub $port 1 }}{{ else }}http{{ end }}, containerPort: {{ add 8000 $port }}}
            {{- end }}
          startupProbe:
            httpGet: {path: /health, port: http}
            periodSeconds: 1
            failureThreshold: 60
          livenessProbe:
            httpGet: {path: /health, port: http}
          readinessProbe:
            httpGet: {path: /health, port: http}
            periodSeconds: 5
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .context.Release.Name }}-{{ .name }}
  labels: {{- $labels | nindent 4 }}
spec:
  selector: {{- $labels | nindent 4 }}
  ports:
    {{- range $port := until (int .ports) }}
    - name: {{ if $port }}instance-{{ sub $port 1 }}{{ else }}http{{ end }}
      port: {{ add 8000 $port }}
    {{- end }}
{{- end }}
