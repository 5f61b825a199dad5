{{- define "hedgerow.labels" -}}
app.kubernetes.io/name: hedgerow
app.kubernetes.io/component: {{ .Values.role }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hedgerow.name" -}}
{{- printf "%s-%s" .Release.Name .Values.role | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "hedgerow.check" -}}
{{- if not (has .Values.role (list "node" "coordinator")) }}{{ fail "role is node or coordinator" }}{{ end }}
{{- if not .Values.image }}{{ fail "image is missing: build it from the Dockerfile, and name it by its digest" }}{{ end }}
{{- if not .Values.secret }}{{ fail "secret is missing: deploy/chart/README.md says how it is made" }}{{ end }}
{{- if and (eq .Values.role "node") (not .Values.node.coordinator) }}{{ fail "node.coordinator is missing: HOST:PORT" }}{{ end }}
{{- if and (eq .Values.role "node") (not .Values.node.egress) }}{{ fail "node.egress is missing: the coordinator's network and port" }}{{ end }}
{{- end }}

{{/* A party's pod. Its files are copied: a Secret's belong to root, and Hedgerow takes private ones of its own user only. */}}
{{- define "hedgerow.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: 60
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
initContainers:
  - name: files
    image: {{ .Values.image | quote }}
    command: [/bin/sh, -c, "umask 077 && cp -L /secret/* /files/"]
    securityContext: &locked
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    resources:
      requests: {cpu: 10m, memory: 32Mi}
      limits: {memory: 64Mi}
    volumeMounts:
      - {name: secret, mountPath: /secret, readOnly: true}
      - {name: files, mountPath: /files}
containers:
  - name: {{ .Values.role }}
    image: {{ .Values.image | quote }}
    args:
      {{- if eq .Values.role "node" }}
      - node
      - {{ .Values.node.table | quote }}
      - --plan=/files/plan.toml
      - --roster=/files/roster.toml
      - --policy=/files/policy.toml
      - --identity=/files/identity.private.json
      - --state=/data/state
      - --budget=/data/budget.db
      - {{ printf "--connect=%s" .Values.node.coordinator | quote }}
      - --serve
      - --out=/data/models
      {{- else }}
      - coordinator
      - /files/plan.toml
      - --roster=/files/roster.toml
      - --identity=/files/identity.private.json
      - {{ printf "--out=%s" .Values.coordinator.model | quote }}
      - {{ printf "--journal=%s.journal" .Values.coordinator.model | quote }}
      - --listen=0.0.0.0:7443
      - --console=0.0.0.0:8787
      {{- end }}
    securityContext: *locked
    resources: {{- toYaml .Values.resources | nindent 6 }}
    {{- if eq .Values.role "coordinator" }}
    ports:
      - {name: grpc, containerPort: 7443}
      - {name: page, containerPort: 8787}
    {{- end }}
    readinessProbe:
      exec: {command: [python, /opt/hedgerow/deploy/health.py]}
      periodSeconds: 30
      timeoutSeconds: 10
    volumeMounts:
      - {name: data, mountPath: /data}
      - {name: files, mountPath: /files, readOnly: true}
      - {name: tmp, mountPath: /tmp}
volumes:
  - name: secret
    secret: {secretName: {{ .Values.secret | quote }}}
  - name: files
    emptyDir: {medium: Memory, sizeLimit: 16Mi}
  - name: tmp
    emptyDir: {sizeLimit: 1Gi}
{{- end }}

{{- define "hedgerow.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .Values.volume.storageClass }}
storageClassName: {{ . | quote }}
{{- end }}
resources: {requests: {storage: {{ .Values.volume.size }}}}
{{- end }}
